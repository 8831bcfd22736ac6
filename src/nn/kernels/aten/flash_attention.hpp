// Internal: attention by libtorch's fused kernels for GPUs, FlashAttention (Dao 2023) and, forward, cuDNN's: scores are never held, and
// those behind a mask not computed.
#pragma once

#include <ATen/core/Tensor.h>
#include <span>

#include "nn/kernels/attention.hpp"

namespace tessera::nn::kernels::aten {

struct Heads {
  at::Tensor queries;       // views [batch, heads, queries, head_dim]
  at::Tensor keys, values;  // views [batch, kv_heads, keys, head_dim]
};

// Whether they compute these: on a GPU that they know, in 16 bits, heads of a length and masks that they take. Documents as below.
bool flash_attends(const Heads& heads, const CrossShape& shape, std::span<const Segment> documents);

// As `attention` and `attention_across` (kernels/attention.hpp), with `out` as the queries. Of documents, queries and keys are the same
// rows; where there are none, each sample is one.
void flash_attention(const Heads& heads, const CrossShape& shape, std::span<const Segment> documents, const at::Tensor& out,
                     const at::Tensor& lse);
// Queries, keys and values become their gradients. Sums have one order.
void flash_attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                              std::span<const Segment> documents, const Heads& heads);

}  // namespace tessera::nn::kernels::aten
