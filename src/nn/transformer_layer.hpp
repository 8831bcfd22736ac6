// Internal: the blocks of transformers of one stack, in the form that their dimensions ask for (model/forms.hpp): Llama's, GPT-2's (Radford
// et al. 2019) or BERT's (Devlin et al. 2019). Where they have "dropout", activations are dropped in training. Constructors throw internal
// when the tensor-parallel degree does not divide what it cuts.
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// tokens -> hidden [batch, seq, hidden]: rows of the vocabulary's table and, with "positions", of that many learned ones; with
// "token_types" a row of so many, by the batch's `token_types` or the first one; with "embedding_norm" a norm behind them. The vocabulary's
// rows are cut.
std::unique_ptr<Block> make_embedding(const model::BlockSpec& spec, const BlockPlacement& placement);
// hidden -> hidden: attention and a feed-forward network, each behind a norm and added to its input. Heads and FFN columns are cut. By its
// dimensions with biases of queries, keys and values, norms of their heads, a window, rotary positions, scaled or not, or none.
std::unique_ptr<Block> make_transformer_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// The same with norms after the sums, and GELU (BERT's).
std::unique_ptr<Block> make_post_norm_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// Its halves, each with the norm behind its sum.
std::unique_ptr<Block> make_attention_sublayer(const model::BlockSpec& spec, const BlockPlacement& placement);
std::unique_ptr<Block> make_feed_forward_sublayer(const model::BlockSpec& spec, const BlockPlacement& placement);
// A layer with routed experts.
std::unique_ptr<Block> make_moe_layer(const model::BlockSpec& spec, const BlockPlacement& placement);
// hidden -> loss (or logits): a norm, or with "head_transform" a map, GELU and a norm (nn/head_input.hpp); projection to the vocabulary,
// with a bias behind a transform; cross-entropy, of the rows whose targets count. The vocabulary's rows are cut.
std::unique_ptr<Block> make_lm_head(const model::BlockSpec& spec, const BlockPlacement& placement);

}  // namespace tessera::nn
