// Internal: the blocks of a decoder-only transformer in Llama's form. Constructors throw internal when the tensor-parallel
// degree does not divide what it cuts.
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// tokens -> hidden [batch, seq, hidden]. The vocabulary's rows are cut.
std::unique_ptr<Block> make_embedding(const model::BlockSpec& spec, const BlockPlacement& placement);
// hidden -> hidden: attention and SwiGLU, each behind an RMSNorm and added to its input. Heads and FFN columns are cut. By its dimensions
// with biases of queries, keys and values, norms of their heads, a window, scaled rotary positions.
std::unique_ptr<Block> make_transformer_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// Likewise, with routed experts instead of the SwiGLU.
std::unique_ptr<Block> make_moe_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// hidden -> loss (or logits): RMSNorm, projection to the vocabulary, cross-entropy. The vocabulary's rows are cut.
std::unique_ptr<Block> make_lm_head(const model::BlockSpec& spec, const BlockPlacement& placement);

}  // namespace tessera::nn
