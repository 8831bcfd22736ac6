// Internal: forward passes of the vision transformer's blocks (Dosovitskiy et al. 2021; nn/autograd_block.hpp), as Hugging Face's ViT has
// them. Where a block has the dimension `dropout`, training drops from the embedding, from the shares of attention and from what a layer
// adds to its input.
#pragma once

#include "nn/block.hpp"

namespace tessera::nn {

// `images` of the batch, f32 [samples, channels, image, image] -> [samples, seq, hidden]: the class token, then the patches row by row.
Tensors patch_embedding(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);
// Attention of all positions to all, and a feed-forward network with exact GELU, each behind a LayerNorm; all maps have biases.
Tensors encoder_layer(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

}  // namespace tessera::nn
