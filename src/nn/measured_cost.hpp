// What a block costs, found out by running it: for blocks of which no formula is known.
#pragma once

#include "nn/block.hpp"

namespace tessera::nn {

// One forward and one backward pass with fp32 of one sample, whose batch is given, by a block that stands whole. FLOPs are those of matrix
// products, attention and convolutions as libtorch sees them in the forward pass, and twice as many in the backward pass; bytes are what
// the allocator hands out. Throws invalid_config, which names the block, where its outputs are not those of its spec.
model::MeasuredCost measured_cost(const model::BlockInstance& instance, const Batch& batch);

}  // namespace tessera::nn
