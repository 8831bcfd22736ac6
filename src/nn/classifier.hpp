// Internal: forward passes of the blocks that end models of images (nn/autograd_block.hpp). They read `labels` of the batch, i64 [samples],
// of which -1 does not count, and return what Block::forward says of a loss: in f32, logits as well.
#pragma once

#include "nn/block.hpp"

namespace tessera::nn {

// A linear map of the mean over all pixels (ResNet: dimension `pixels`), or of the norm of the first position (ViT: `seq`).
Tensors classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);
// VGG's: means over 7 x 7 parts of the maps, then linear maps, with ReLU and `dropout` behind all but the last.
Tensors mlp_classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

}  // namespace tessera::nn
