// Internal. How the ranks of a task find each other: rank 0 listens at the rendezvous, and lets in whoever proves that it knows the
// secret of the run; the others let no rank 0 lead them that does not.
#pragma once

#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "comm/frames.hpp"
#include "comm/rendezvous_messages.hpp"

namespace tessera::comm {

struct Meeting {
  std::vector<Introduction> ranks;
  // Rank 0: one connection per rank (its own place is closed). Others: the one to rank 0, at place 0.
  std::vector<FrameSocket> sockets;
};

// Blocks until all ranks are there. Throws deadline_exceeded naming who did not come, invalid_config when refused (another
// secret or none, another task, another world size, a rank that is there already) and for a rendezvous that other hosts can reach
// where there is no secret, io when rank 0 cannot listen.
Meeting meet(const Options& options, const Introduction& own);

// Every rank says which world ranks it reaches, and learns what all ranks said, in rank order. Throws like meet().
std::vector<std::vector<int>> exchange_reached(const Options& options, Meeting& meeting, const std::vector<int>& own);

// Processes that are connected to rank 0 and have not proved who they are: at most so many, and for so long. One that has said nothing
// makes room for the next one after the shorter time.
inline constexpr std::size_t kMostStrangers = 128;
inline constexpr std::chrono::milliseconds kProofPatience{10'000};
inline constexpr std::chrono::milliseconds kGrace{250};

// The two sides of meet().
Meeting host_rendezvous(const Options& options, const Introduction& own);
Meeting join_rendezvous(const Options& options, const Introduction& own);

// What both sides use.
// All ranks are started together, however long their collectives may take.
SteadyClock::time_point rendezvous_deadline(const Options& options);
// `also`: what else is known about it.
[[noreturn]] void throw_absent(const Options& options, const std::vector<int>& absent, const std::string& also = {});
// One message from this socket; `who` is the rank at the other end. Throws peer_lost, deadline_exceeded, corrupt.
nlohmann::json receive_one(const Options& options, FrameSocket& socket, int who, SteadyClock::time_point deadline);

}  // namespace tessera::comm
