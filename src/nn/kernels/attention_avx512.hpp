// Internal: causal attention of one key-value head with the tiles of gemm_avx512. Keys and values are packed once for all
// the query heads that share them, a few query rows at a time go through scores, softmax and output in the caches, and what
// lies beyond the diagonal or before the window is left out tile by tile.
#pragma once

#include <cstdint>

namespace tessera::nn::kernels {

// Pointers to the first row of one segment; rows are `stride` elements apart, heads beside each other in a row.
template <typename T>
struct HeadGroup {
  std::int64_t seq;
  std::int64_t heads;  // query heads that share these keys and values
  std::int64_t head_dim;
  std::int64_t window;  // as in AttentionShape
  std::int64_t stride;  // of queries, keys and values
  T* queries;
  T* keys;
  T* values;
  std::int64_t out_stride;
  const T* out_grad;  // backward only
  T* out;             // read by the backward pass
  float* lse;         // of a head; those of the next are lse_stride behind
  std::int64_t lse_stride;

  // The first key that a query sees; never falls from one query to the next.
  std::int64_t first_key(std::int64_t query) const { return window > 0 && query >= window ? query - window + 1 : 0; }
};

template <typename T>
void attend(const HeadGroup<T>& group);
// Queries, keys and values become their gradients.
template <typename T>
void attend_backward(const HeadGroup<T>& group);

}  // namespace tessera::nn::kernels
