// Scaled-dot-product attention with grouped queries, straight on the rows that the projection wrote.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <vector>

namespace tessera::nn::kernels {

// Consecutive rows of a sample that attend to each other alone.
struct Segment {
  std::int64_t sample;
  std::int64_t first;
  std::int64_t rows;
};

struct AttentionShape {
  std::int64_t batch;
  std::int64_t seq;
  std::int64_t heads;
  std::int64_t kv_heads;  // divides heads
  std::int64_t head_dim;
  std::int64_t window = 0;             // a query sees so many positions, its own the last of them; 0: all up to its own
  std::vector<Segment> segments = {};  // all rows, in order; empty: each sample is one
  bool causal = true;                  // else a query sees the whole segment, and there is no window
};

// The documents of samples whose tokens have these positions ([batch, seq], see nn::Batch); empty when it is undefined.
std::vector<Segment> document_segments(const at::Tensor& positions);

// qkv [batch*seq, (heads + 2*kv_heads)*head_dim]: queries, keys, values beside each other in each row.
// out [batch*seq, heads*head_dim]; lse f32 [batch, heads, seq]: log-sum-exp of each query's scores.
void attention(const at::Tensor& qkv, const AttentionShape& shape, at::Tensor& out, at::Tensor& lse);
// Overwrites qkv with its gradient.
void attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                        at::Tensor& qkv);

// The same by ATen's flash attention for CPUs, for CPUs that we have no kernels for; tests compare ours with it.
void attention_plain(const at::Tensor& qkv, const AttentionShape& shape, at::Tensor& out, at::Tensor& lse);
void attention_backward_plain(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                              at::Tensor& qkv);

// Queries of some positions of a sequence against keys and values of others, all of them consecutive: a part of the attention of a
// sequence that several ranks hold. Every query sees at least one of the keys.
struct CrossShape {
  std::int64_t batch;
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t heads;
  std::int64_t kv_heads;
  std::int64_t head_dim;
  std::int64_t offset;      // positions from the first key to the first query; not negative under a causal mask
  std::int64_t window = 0;  // as above
  bool causal = true;       // else a query sees all keys, whatever the offset, and there is no window
};

// queries [batch*queries, heads*head_dim]; keys_values [batch*keys, 2*kv_heads*head_dim], keys and values beside each other in each row;
// both contiguous. out as the queries; lse f32 [batch, heads, queries], of the scores of these keys alone.
void attention_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, at::Tensor& out, at::Tensor& lse);
// `out` and `lse` are those of all keys that the queries see. Overwrites queries, keys and values with their gradients from these pairs.
void attention_across_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                               at::Tensor& queries, at::Tensor& keys_values);
void attention_across_plain(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, at::Tensor& out,
                            at::Tensor& lse);
void attention_across_backward_plain(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                                     at::Tensor& queries, at::Tensor& keys_values);

// Appends this call's keys and values to the cache ([batch, kv_heads, capacity, head_dim]) at `position` and lets its
// queries see all positions up to their own.
void attention_with_cache(const at::Tensor& qkv, const AttentionShape& shape, std::int64_t position, at::Tensor& keys, at::Tensor& values,
                          at::Tensor& out);

}  // namespace tessera::nn::kernels
