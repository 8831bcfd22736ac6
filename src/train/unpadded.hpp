// Internal: which elements of a parameter's shard are no padding. Checkpoints hold these alone.
#pragma once

#include <ATen/core/Tensor.h>
#include <algorithm>
#include <cstdint>

#include "nn/block.hpp"

namespace tessera::train {

// A flattened shard is a row of equally long runs, each with its padding at the end.
class Unpadded {
 public:
  Unpadded(const model::ParameterSpec& parameter, const nn::BlockPlacement& placement);

  // How many of the first `position` elements of the shard are real.
  std::int64_t before(std::int64_t position) const { return position / held_ * real_ + std::min(position % held_, real_); }
  // The real elements, in order, of `part`, which has the shard's elements from `begin` on, 1-d. A view if they are contiguous.
  at::Tensor pack(const at::Tensor& part, std::int64_t begin) const;
  // The other way round: puts what pack() gave, or a copy of it, back to where it was taken from. Does nothing for a view.
  void unpack(const at::Tensor& packed, at::Tensor part, std::int64_t begin) const;

 private:
  bool side_by_side(std::int64_t begin, std::int64_t count) const;

  std::int64_t held_;  // elements of a run
  std::int64_t real_;  // of these, before its padding
};

}  // namespace tessera::train
