// Internal: the blocks of a decoder-only transformer, in the form that their dimensions ask for: Llama's, or with "layer_norm", "gelu",
// "biases" and "maps_in_out" (maps are stored [in, out], queries, keys and values as one) GPT-2's (Radford et al. 2019). Where they have
// "dropout", activations are dropped in training. Constructors throw internal when the tensor-parallel degree does not divide what it cuts.
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// tokens -> hidden [batch, seq, hidden]: rows of the vocabulary's table and, with "positions", of that many learned ones; with
// "embedding_norm" a norm behind them. The vocabulary's rows are cut.
std::unique_ptr<Block> make_embedding(const model::BlockSpec& spec, const BlockPlacement& placement);
// hidden -> hidden: attention and a feed-forward network, each behind a norm and added to its input. Heads and FFN columns are cut. By its
// dimensions with biases of queries, keys and values, norms of their heads, a window, rotary positions, scaled or not, or none.
std::unique_ptr<Block> make_transformer_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// Likewise, with routed experts.
std::unique_ptr<Block> make_moe_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// hidden -> loss (or logits): norm, projection to the vocabulary, cross-entropy. The vocabulary's rows are cut.
std::unique_ptr<Block> make_lm_head(const model::BlockSpec& spec, const BlockPlacement& placement);

}  // namespace tessera::nn
