// What a rank has sent, counted where it leaves.
#pragma once

#include <cstdint>
#include <string_view>

#include "base/units.hpp"

namespace tessera::comm {

// The traffic of the operations that a rank has begun in one or several groups.
struct Traffic {
  std::int64_t messages = 0;     // that it sent to other ranks
  std::int64_t collectives = 0;  // of more than one rank
  Bytes bytes;                   // that it sent to ranks with which it does not share memory; 0 for NCCL's, which does not say
  bool operator==(const Traffic&) const = default;
};
Traffic& operator+=(Traffic& sum, const Traffic& other);

// The bytes that all ranks of a group, each on a host of its own, together hand to the network in one collective ("all_reduce",
// "reduce_scatter", "all_gather", "all_to_all") or message ("send"). `buffer` is what an all-reduce sums, a gather ends with, a scatter
// begins with, a rank holds for an all-to-all, or a message carries. Rings move (ranks - 1) times the buffer in each direction of an
// all-reduce; a small all-reduce doubles.
Bytes bytes_on_network(std::string_view operation, int ranks, Bytes buffer);

// The bytes that go from host to host, for `hosts` hosts with two or more ranks each and an "all_reduce", "reduce_scatter" or "all_gather"
// that is large enough to run on two levels. Rings between hosts move (hosts - 1) times the buffer, however many ranks they have.
Bytes bytes_between_hosts(std::string_view operation, int hosts, Bytes buffer);

// True where the ranks of a group on two levels (Options::two_levels) run such a collective on them.
bool runs_on_levels(std::string_view operation, int ranks, Bytes buffer);

// An all-reduce up to this size takes log2(ranks) exchanges of the whole buffer instead of a ring.
constexpr std::int64_t largest_doubled(int ranks) { return (ranks == 2 ? 64 : 16) << 10; }
// In reduce-scatters and all-gathers up to this size of a rank's chunk, every rank sends to every other.
inline constexpr std::int64_t kLargestDirect = 8 << 10;

}  // namespace tessera::comm
