// Internal: how devices of several kinds share the samples of a micro-batch.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::search {

// Ranks of one kind.
struct SharePart {
  int ranks = 1;
  double speed = 1;  // of all of them together, in any unit
};

// The ways that the searches try to share so many samples, in the order of the parts, at most `most` of them: around what the speeds
// say, the nearest first, in steps with which replicas divide. None where there are fewer samples than parts.
std::vector<std::vector<std::int64_t>> batch_shares(const std::vector<SharePart>& parts, std::int64_t samples, std::size_t most);

}  // namespace tessera::search
