// Attention whose shares are dropped (kernels/dropout.hpp) before they weigh the values. Fused kernels draw masks of their own, which
// depend on the order of calls; this one takes some queries of a head at a time, and keeps no scores either.
#pragma once

#include <span>

#include "nn/kernels/attention.hpp"

namespace tessera::nn::kernels {

// The share of a key in a query is element (head * seq + query) * seq + key of its sample, by their places in the whole sequence.
struct ScoreMask {
  double probability = 0;
  std::span<const std::uint64_t> seeds;  // of each sample
  std::int64_t first_head = 0;           // of the model's heads
  std::int64_t seq = 0;                  // positions of the whole sequence
  std::int64_t position = 0;             // of the first query
};

// Like attention() and attention_backward(), for rows of whole sequences.
void dropped_attention(const at::Tensor& qkv, const AttentionShape& shape, const ScoreMask& mask, at::Tensor& out, at::Tensor& lse);
void dropped_attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                                const ScoreMask& mask, at::Tensor& qkv);

// Like attention_across() and attention_across_backward(), for the queries from mask.position on. Rows are views [batch, rows, width], lse
// is one [batch, heads, queries].
void dropped_attention_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, const ScoreMask& mask,
                              const at::Tensor& out, const at::Tensor& lse);
void dropped_attention_across_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                                       const ScoreMask& mask, const at::Tensor& queries, const at::Tensor& keys_values);

}  // namespace tessera::nn::kernels
