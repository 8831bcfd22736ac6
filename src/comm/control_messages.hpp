// Internal. What ranks tell each other over the control channel, as data and as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "base/error.hpp"

namespace tessera::comm {

// Why no operation can succeed any more.
struct Failure {
  ErrorCode code = ErrorCode::internal;
  int rank = -1;  // whose fault it is, if one's
  std::string message;
};

struct Heartbeat {
  std::vector<int> without = {};           // from rank 0: the ranks whose last heartbeat is old
  std::string place = {};                  // what the sender is at, at most kLongestPlace bytes
  std::map<int, std::string> places = {};  // from rank 0: what the others were last at, where it may be of use
};
inline constexpr std::size_t kLongestPlace = 256;

// Group key -> how many of its collectives a rank has joined.
using Joined = std::map<std::uint64_t, std::uint64_t>;

struct Closing {
  int rank = 0;
  Joined joined;
};

// From rank 0: all ranks have closed.
struct End {};

using ControlMessage = std::variant<Heartbeat, Failure, Closing, End>;

nlohmann::json to_json(const ControlMessage& message);
// Throws corrupt for anything that to_json does not write for this world size.
ControlMessage control_message_from(const nlohmann::json& message, int world_size);

}  // namespace tessera::comm
