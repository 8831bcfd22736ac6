// Internal: the blocks of convolutional networks. They stand whole on each rank.
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// Convolution of the input or, without one, of the batch's `images`; batch norm where there is one, ReLU, and the maximum over windows
// where there are any.
std::unique_ptr<Block> make_conv_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// Two convolutions, or three with `bottleneck`, and what they add to: the input or, with `shortcut`, a convolution of it (He et al. 2016).
// Also either part of it, where layers are split: what the sum reads besides passes the branch.
std::unique_ptr<Block> make_residual_block(const model::BlockSpec& spec, const BlockPlacement& placement);

}  // namespace tessera::nn
