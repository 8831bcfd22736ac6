// Internal: the blocks that end models of images. They read `labels` of the batch, i64 [samples], of which -1 does not count, and return
// what Block::forward says of a loss: in f32, logits as well.
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// A linear map of the mean over all pixels (ResNet: dimension `pixels`), or of the norm of the first position (ViT: `seq`). The forward
// pass of a block by autograd (nn/autograd_block.hpp).
Tensors classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);
// VGG's: means over 7 x 7 parts of the maps, then three linear maps, with ReLU and `dropout` behind all but the last. It has most of VGG's
// parameters, whose gradients it adds up in place. Tensor parallelism cuts the first map's outputs and the second's inputs.
std::unique_ptr<Block> make_mlp_classifier(const model::BlockSpec& spec, const BlockPlacement& placement);

// Of logits [samples, classes]: what a block returns that ends a model.
Tensors classification_loss(const at::Tensor& logits, const Pass& pass);

}  // namespace tessera::nn
