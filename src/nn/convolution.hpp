// Internal: forward passes of the blocks of convolutional networks (nn/autograd_block.hpp). Maps are [samples, channels, side, side]; in
// memory the channels of a pixel lie side by side (channels last).
#pragma once

#include "nn/block.hpp"

namespace tessera::nn {

// Convolution, batch norm where there is one, ReLU, maximum over windows where there are any. The first reads `images` of the batch, f32
// [samples, channels, side, side]. Dimensions: model/vision_cost.hpp.
Tensors conv_layer(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);
// Two convolutions or, with a bottleneck, three, added to the input or to a convolution of it; each with batch norm (He et al. 2016).
Tensors residual_block(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

}  // namespace tessera::nn
