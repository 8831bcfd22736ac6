// Internal: dropout as an operator that autograd differentiates.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

#include "nn/block.hpp"

namespace tessera::nn {

// x [batch, ...] where the pass does not drop, or with a part of it dropped (kernels/dropout.hpp) and the rest scaled up. The masks depend
// on the seed of the step, the sample, the block and `site`, a number of the place within the block: the same whoever computes the block,
// and whenever. The backward pass makes them again.
at::Tensor dropout(const at::Tensor& x, double probability, int site, const Pass& pass);

// The seeds of the masks of a micro-batch's samples.
std::vector<std::uint64_t> sample_seeds(std::int64_t samples, int site, const Pass& pass);

}  // namespace tessera::nn
