#include "nn/ranks_helper.hpp"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdio>
#include <string>
#include <vector>

#include "base/free_port.hpp"
#include "nn/autograd.hpp"

namespace tessera::nn::test {

void in_ranks(int size, const std::function<void(const comm::Group&)>& body) {
  const std::string place = free_loopback_place();
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      alarm(100);
      at::set_num_threads(1);  // the parent's worker threads do not exist here
      bool good = false;
      try {
        comm::Options options;
        options.rank = rank;
        options.world_size = size;
        options.rendezvous = place;
        options.deadline = Seconds(60);
        const auto communicator = comm::Communicator::connect(options);
        {
          const WithoutAutograd plain;
          body(communicator->world());
        }
        communicator->world().barrier().wait();
        good = !testing::Test::HasFailure();
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      std::fflush(nullptr);
      _exit(good ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "a rank failed, its output is above";
  }
}

}  // namespace tessera::nn::test
