// Internal. How the ranks of a task find each other.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "comm/frames.hpp"

namespace tessera::comm {

// What a rank tells the others about itself.
struct Introduction {
  std::string network_address;  // opaque bytes of the transport
  std::string host;             // equal for ranks that may share memory; empty: never
  int process = 0;
  int segment = -1;         // descriptor number of its shared segment in that process
  std::uint64_t nonce = 0;  // stands at the segment's start
};

struct Meeting {
  std::vector<Introduction> ranks;
  // Rank 0: one connection per rank (its own place is closed). Others: the one to rank 0, at place 0.
  std::vector<FrameSocket> sockets;
};

// Blocks until all ranks are there. Throws deadline_exceeded naming who did not come, invalid_config when refused (another
// task, another world size, a rank that is there already), io when rank 0 cannot listen.
Meeting meet(const Options& options, const Introduction& own);

// Every rank gives one message and receives all, in rank order.
std::vector<nlohmann::json> exchange(const Options& options, Meeting& meeting, const nlohmann::json& own);

}  // namespace tessera::comm
