#include "cli/workers.hpp"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "base/free_port.hpp"
#include "cluster/processors.hpp"
#include "control/thread_waits.hpp"

namespace tessera::cli {
namespace {

// UCX takes SIGHUP for itself when it is loaded, also where nohup ignores it, unless its setting names another signal, or none.
constexpr std::pair<const char*, const char*> kHangUpStaysOurs = {"UCX_DEBUG_SIGNO", "0"};

}  // namespace

std::vector<control::WorkerCommand> worker_commands(const std::vector<std::string>& arguments, const std::vector<plan::RankPlace>& places,
                                                    const cluster::ClusterSpec& cluster) {
  const std::string program = control::sibling_program("tessera-worker").string();
  const std::string rendezvous = free_loopback_place();
  const int threads =
      std::accumulate(places.begin(), places.end(), 0, [](int sum, const plan::RankPlace& place) { return sum + place.threads; });
  const std::vector<int> processors = cluster::usable_processors();
  const bool own_cores = threads <= cluster.groups.front().device.cores && threads <= static_cast<int>(processors.size());
  std::vector<control::WorkerCommand> commands;
  std::size_t next = 0;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    control::WorkerCommand command;
    command.rank = static_cast<int>(rank);
    command.arguments = {program};
    command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
    command.arguments.insert(command.arguments.end(),
                             {"--rank", std::to_string(rank), "--world", std::to_string(places.size()), "--rendezvous", rendezvous});
    command.environment = {kHangUpStaysOurs, {"OMP_NUM_THREADS", std::to_string(places[rank].threads)}};
    if (own_cores)
      for (int thread = 0; thread < places[rank].threads; ++thread) command.processors.push_back(processors[next++]);
    commands.push_back(std::move(command));
  }
  return commands;
}

void become_worker(const std::vector<std::string>& arguments, bool json) { become_program("tessera-worker", arguments, json); }

void become_program(const std::string& name, const std::vector<std::string>& arguments, bool json) {
  ::setenv(kHangUpStaysOurs.first, kHangUpStaysOurs.second, 1);
  control::spin_briefly();
  if (json) control::report_errors_to(STDOUT_FILENO);
  const std::string program = control::sibling_program(name).string();
  std::vector<char*> pointers = {const_cast<char*>(program.c_str())};
  for (const auto& argument : arguments) pointers.push_back(const_cast<char*>(argument.c_str()));
  pointers.push_back(nullptr);
  ::execv(program.c_str(), pointers.data());
  throw_errno("start", program, errno);
}

}  // namespace tessera::cli
