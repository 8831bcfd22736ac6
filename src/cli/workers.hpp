// Internal: how `tessera` calls tessera-worker on this host.
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "control/local_launcher.hpp"
#include "control/report.hpp"
#include "plan/plan.hpp"

namespace tessera::cli {

// One command per rank: the arguments, then --rank, --world and --rendezvous at a free port. Each worker gets its threads
// and, where the host has enough cores for all, cores of its own.
std::vector<control::WorkerCommand> worker_commands(const std::vector<std::string>& arguments, const std::vector<plan::RankPlace>& places,
                                                    const cluster::ClusterSpec& cluster);

// Replaces this process by a program beside it, which keeps the terminal. `json`: it prints errors to stdout as JSON objects. Throws when
// there is none to run.
[[noreturn]] void become_program(const std::string& name, const std::vector<std::string>& arguments, bool json = false);
[[noreturn]] void become_worker(const std::vector<std::string>& arguments, bool json = false);

}  // namespace tessera::cli
