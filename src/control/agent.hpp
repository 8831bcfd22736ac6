// Stands for a launcher on another host: starts this host's ranks, passes on what they write and how they end, and ends them when the
// launcher says so or is there no more.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::control {

struct AgentOptions {
  std::string version;          // of Tessera
  std::string cluster;          // this host as a cluster file
  std::vector<int> processors;  // that computing may use, one of each core
  // Where the launcher listens, "ADDRESS:PORT" each; empty: it is at the other end of this process's input and output, as ssh makes them.
  std::vector<std::string> places = {};
  std::filesystem::path secret_file = {};  // with `places`: holds the secret of the run
};

// Returns when all ranks have ended, or there is no more launcher. Throws what keeps it from meeting the launcher.
void run_agent(const AgentOptions& options);

}  // namespace tessera::control
