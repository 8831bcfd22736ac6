// The hosts of a run, as their user lists them.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"

namespace tessera::control {

struct Host {
  std::string name;          // as ssh takes it: "node-1", "alice@10.0.0.7", an alias of ~/.ssh/config
  std::optional<int> slots;  // ranks that it may run at most; none: as many as the plan puts there
  std::string address;       // at which other hosts reach it; empty: the one at which it was reached
  Where where = {};          // in the host file
  bool operator==(const Host& other) const { return name == other.name && slots == other.slots && address == other.address; }
};

// A host file: one host a line, in the order of the cluster's nodes, empty lines and # comments between them:
//
//   node-1 slots=2
//   alice@node-2 slots=2 address=10.0.0.2     # as Open MPI's host files, and where rank 0 is reached
//
// Throws invalid_config with file, line and the expected form of every line that is wrong; read_host_file also not_found and io.
std::vector<Host> parse_hosts(std::string_view content, const std::string& file);
std::vector<Host> read_host_file(const std::filesystem::path& path);
// parse_hosts reads it back as the same hosts.
std::string to_text(const std::vector<Host>& hosts);

}  // namespace tessera::control
