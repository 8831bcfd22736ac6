// Internal: forward passes of T5's blocks (Raffel et al. 2020; nn/autograd_block.hpp) but for its embeddings and its head. Where a block
// has the dimension `dropout`, training drops what a norm at the end of a stack makes, from the shares of attention, from the hidden vector
// of the feed-forward network, and from what a layer adds to its input.
#pragma once

#include "nn/block.hpp"

namespace tessera::nn {

// A layer of an encoder, hidden -> hidden, or of a decoder, which also reads `encoded`: attention to its own side, in a decoder attention
// to `encoded`, and a feed-forward network of RELU or, with "gated", of gated GELU; each after an RMSNorm. Maps have no biases. Scores are
// not scaled; those of the own side have a bias by the distance of key and query.
Tensors t5_layer(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);
// The end of a stack: an RMSNorm.
Tensors final_norm(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

// The bias that each of `seq` queries adds to its scores, [heads, seq, seq] f32, from a table [buckets, heads]. A bucket is of one distance
// where it is short and of ever more farther away, up to `max_distance`, from where on all have the last one. Under `causal`, later keys
// have -infinity; else half of the buckets are theirs.
at::Tensor relative_bias(const at::Tensor& table, std::int64_t seq, std::int64_t max_distance, bool causal);

}  // namespace tessera::nn
