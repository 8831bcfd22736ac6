// Internal. What a launcher and its agent on another host tell each other, as data and as JSON.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "control/worker_process.hpp"

namespace tessera::control {

// Ranks that one job may have.
inline constexpr int kMostRanks = 1 << 20;

// From the agent, first: who and where it is.
struct Hello {
  std::string version;  // of Tessera
  std::string host;     // what the host calls itself
  std::string node;     // what its launcher calls it; empty: the same
  std::string address;  // at which the launcher reached it; empty: not known
  int port = 0;         // one that is free there, for rank 0
  int index = 0;        // among those that a launcher's command started
  int count = 1;        // of them
  std::string cluster;  // the host as a cluster file
};

// From the launcher: the ranks to start.
struct Start {
  struct Rank {
    int rank = 0;
    int threads = 1;
    std::vector<std::string> arguments;  // of tessera-worker
    std::vector<std::pair<std::string, std::string>> environment;
  };
  std::string folder;               // to work in
  std::vector<std::string> needed;  // files that must be seen from there
  std::string secret;               // of the run; empty: the agent has it
  bool pins = false;                // each rank gets cores of its own, where there are enough
  std::vector<Rank> ranks;
};

// From the launcher: ask the ranks to stop, or end them.
struct Tell {
  bool kill = false;
};

// From the agent: what a rank wrote, and how it ended.
struct Wrote {
  int rank = 0;
  Stream stream = Stream::errors;
  std::string bytes;
};
struct Ended {
  RankEnd end;
};
// From the agent: it can start nothing. The error as to_json writes it.
struct Refused {
  std::string error;
};
// Either: still there.
struct Beat {};

using AgentMessage = std::variant<Hello, Start, Tell, Wrote, Ended, Refused, Beat>;

nlohmann::json to_json(const AgentMessage& message);
// Throws corrupt for anything that to_json does not write.
AgentMessage agent_message_from(const nlohmann::json& message);

}  // namespace tessera::control
