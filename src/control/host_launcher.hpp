// Starts the ranks of one job on several hosts and watches them to their end, over ssh or with another launcher's command (srun, mpirun).
//
// On each host an agent (agent.hpp) starts that host's ranks. It ends them when the connection to this process goes away, and tells the
// launcher what they write and how they end; so a killed rank, host, connection or launcher leaves no process behind anywhere.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "control/host_file.hpp"
#include "control/local_launcher.hpp"

namespace tessera::control {

// The hosts, and how to start something on them.
struct Hosts {
  std::vector<Host> hosts;  // over ssh; empty where `command` starts them
  // The shell command of a launcher that starts the words after it once for every rank, or once on every host. It knows which hosts.
  std::string command;
  std::string version;  // of Tessera, the same everywhere
  // Seen by all hosts, made for this launch and removed by whoever made it. The secret goes through a file there that only this user can
  // read, where `command` starts the agents; over ssh it goes through the connection.
  std::filesystem::path scratch;
};

struct FarRank {
  int host = 0;     // index, in the order of Hosts::hosts
  int threads = 1;  // the agent gives it so many cores of its own where the host has enough for all its ranks
};

struct FarJob {
  std::vector<std::string> arguments;  // of tessera-worker; --rank, --world and --rendezvous are added
  std::vector<FarRank> ranks;          // in rank order
  int hosts = 1;                       // of the cluster; the ranks may leave some without work
  // Files that every host must see. The ranks work in this process's folder.
  std::vector<std::filesystem::path> needed;
  std::optional<std::filesystem::path> logs;  // the folder for what each rank writes (rank_output.hpp)
};

// Like run_workers. Also throws invalid_config when hosts or slots are too few for the ranks; not_found when a host lacks Tessera, the
// folder or a needed file, or there is no ssh; peer_lost, with the host and ssh's last words, when a host cannot be reached or its
// connection is lost. Each launch has a new secret (base/secret.hpp).
void run_on_hosts(const Hosts& hosts, const FarJob& job, const LaunchOptions& options);

// One host as it describes itself.
struct FoundHost {
  std::string name;
  std::string cluster;  // as a cluster file
};
// Asks all hosts, in the order of their index; a host once, however many processes a command starts there. Throws as run_on_hosts.
std::vector<FoundHost> survey(const Hosts& hosts);

}  // namespace tessera::control
