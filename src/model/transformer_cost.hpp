// Internal: costs of a language model's blocks. Those that nn/ computes (model/forms.hpp) are described as it computes and keeps them;
// tests hold them against what torch counts and what the allocator sees. A block whose dimensions say `autograd`, and one of another
// form, keeps what PyTorch frameworks keep.
#pragma once

#include "model/model.hpp"

namespace tessera::model {

BlockCost embedding_cost(const BlockSpec& block, const BlockShard& shard);
// The cost of a layer without experts.
BlockCost transformer_layer_cost(const BlockSpec& block, const BlockShard& shard);
// The costs of the halves of a layer whose norms come after its sums.
BlockCost attention_sublayer_cost(const BlockSpec& block, const BlockShard& shard);
BlockCost feed_forward_sublayer_cost(const BlockSpec& block, const BlockShard& shard);
// Experts behind attention.
BlockCost moe_layer_cost(const BlockSpec& block, const BlockShard& shard);
BlockCost lm_head_cost(const BlockSpec& block, const BlockShard& shard);
// The end of an encoder; keeps its output for the layers of the decoder.
BlockCost final_norm_cost(const BlockSpec& block, const BlockShard& shard);
// A linear map of each position, whole on every rank. Dimensions: seq, in, hidden.
BlockCost projector_cost(const BlockSpec& block, const BlockShard& shard);

// Logits exist for so many rows at a time: few enough to stay in a CPU's caches between the projection, the softmax and the two products
// that use its gradient, but so many that the gradient of the weights, which each chunk reads and writes, moves about as many bytes as
// the logits do. `columns` is this rank's part of the vocabulary.
std::int64_t lm_head_chunk_rows(std::int64_t columns, std::int64_t hidden);

}  // namespace tessera::model
