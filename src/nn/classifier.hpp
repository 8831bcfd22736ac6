// Internal: the blocks that end models which tell classes. They read `labels` of the batch, i64 [samples], of which -1 does not count, and
// return what Block::forward says of a loss: in f32, logits as well.
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// ViT's: a linear map of the norm of the first position. The forward pass of a block by autograd (nn/autograd_block.hpp).
Tensors position_classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);
// BERT's: a linear map and tanh of the first position, and another map behind it. Likewise.
Tensors pooled_classifier(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);
// Linear maps of means over feature maps, whose gradients are added up in place: one of the means over all pixels (ResNet), or three of
// those over 7 x 7 parts (VGG: kind "mlp"), with ReLU and `dropout` behind all but the last. Tensor parallelism cuts VGG's first map's
// outputs and the second's inputs.
std::unique_ptr<Block> make_map_classifier(const model::BlockSpec& spec, const BlockPlacement& placement);

// The outputs of a model's last block, from logits [samples, classes].
Tensors classification_loss(const at::Tensor& logits, const Pass& pass);

}  // namespace tessera::nn
