// Internal. Groups that stand on two levels: on several hosts, with the same number of ranks, two or more, on each.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace tessera::comm {

struct Levels {
  // Group ranks by host and place on it: hosts in the order of their first ranks, the ranks of a host in the order of the group. The ranks
  // of all hosts with the same place form a column.
  std::vector<std::vector<int>> ranks;
  // Of this rank.
  std::size_t host = 0;
  std::size_t place = 0;
};

// `hosts` by group rank: equal for ranks of one host; below zero for a rank whose host is not known. No value where the group does not
// stand on two levels.
std::optional<Levels> levels_of(const std::vector<int>& hosts, int rank);

}  // namespace tessera::comm
