#include "control/search_watch.hpp"

#include <gtest/gtest.h>
#include <unistd.h>
#include <csignal>
#include <thread>

namespace tessera::control {
namespace {

TEST(SearchWatch, TheFirstInterruptStopsTheSearch) {
  // Where a script starts the tests in the background, it is ignored.
  struct sigaction before {};
  ASSERT_EQ(::sigaction(SIGINT, nullptr, &before), 0);
  ::signal(SIGINT, SIG_DFL);
  {
    SearchWatch watch(OnInterrupt::stop_search);
    std::thread search([&] {
      while (!watch.watch()->stop) {
        ++watch.watch()->considered;
        watch.watch()->found(Seconds(1));
        std::this_thread::yield();
      }
    });
    EXPECT_FALSE(watch.stopped());
    ::kill(::getpid(), SIGINT);
    search.join();
    EXPECT_TRUE(watch.stopped());
  }
  ASSERT_EQ(::sigaction(SIGINT, &before, nullptr), 0);
}

}  // namespace
}  // namespace tessera::control
