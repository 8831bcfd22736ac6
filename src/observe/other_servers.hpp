// Other parameter servers for a run that trains: who asks for them and the run speak by files in its folder.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::observe {

// Has the run go on with these servers, HOST:PORT each. What came of an earlier request is forgotten. Throws io.
void ask_for_servers(const std::filesystem::path& run, const std::vector<std::string>& places);
// Nothing is asked for that has no answer: none. Throws invalid_config for a file that is none of ask_for_servers().
std::vector<std::string> asked_servers(const std::filesystem::path& run);

// servers-taken.json of a run (docs/file-formats.md).
struct ServersTaken {
  std::vector<std::string> places;
  std::int64_t after_step = 0;
  std::uint64_t rows = 0;
  double beside = 0, stood = 0;  // seconds
  std::string refused = {};      // why the run has kept the servers that it had; empty: it has not
};
// Answers, which ends the request for these servers. Throws io.
void say_servers_taken(const std::filesystem::path& run, const ServersTaken& taken);
// Ends a request without an answer.
void forget_request(const std::filesystem::path& run);
// Throws corrupt.
std::optional<ServersTaken> servers_taken(const std::filesystem::path& run);

}  // namespace tessera::observe
