// The elements of a micro-batch's tensors that a rank holds, and those that two ranks have in common, for resharding.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::program {

// Elements [begin, end) of what a rank and its tensor-parallel peers hold of some consecutive samples: all of them, or where context
// parallelism cuts each sample, its chunks context_index and 2 * context_size - 1 - context_index (nn/sequence.hpp), sample by sample. The
// order is that of the whole micro-batch in either case.
struct Part {
  std::int64_t samples_before = 0;
  std::int64_t samples = 0;
  int context_index = 0;
  int context_size = 1;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
  bool operator==(const Part&) const = default;
};

// Consecutive elements that two parts share, and where they begin in each.
struct SharedRun {
  std::int64_t first = 0;
  std::int64_t second = 0;
  std::int64_t count = 0;
};

// In order. `each`: elements of a sample, which all 2 * context_size of either part divide. Linear in the samples of both.
std::vector<SharedRun> shared_runs(const Part& first, const Part& second, std::int64_t each);
std::int64_t shared_count(const Part& first, const Part& second, std::int64_t each);

}  // namespace tessera::program
