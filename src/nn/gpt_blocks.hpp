// Internal: the blocks of GPT-2 (Radford et al. 2019), differentiated by libtorch's autograd. Each holds all of its parameters: they are
// not cut by tensor parallelism.
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// tokens -> hidden [batch, seq, hidden]: rows of the vocabulary's table and, where the model has one, of the positions'; then a LayerNorm
// where there is one.
std::unique_ptr<Block> make_position_embedding(const model::BlockSpec& spec, const BlockPlacement& placement);
// hidden -> hidden: attention and an MLP with GELU (its tanh form), each behind a LayerNorm and added to its input.
std::unique_ptr<Block> make_gpt_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// hidden -> loss (or logits): LayerNorm, projection to the vocabulary, cross-entropy.
std::unique_ptr<Block> make_language_head(const model::BlockSpec& spec, const BlockPlacement& placement);

}  // namespace tessera::nn
