// Internal: causal attention of one key-value head with the tiles of gemm_avx512. Keys and values are packed once for all
// the query heads that share them, a few query rows at a time go through scores, softmax and output in the caches, and what
// lies beyond the diagonal or before the window is left out tile by tile.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::nn::kernels {

// Pointers to the first rows; rows are a stride apart, heads beside each other in a row. Every query sees at least one key.
template <typename T>
struct HeadGroup {
  std::int64_t query_rows;
  std::int64_t key_rows;
  std::int64_t offset;  // positions from the first key to the first query
  std::int64_t heads;   // query heads that share these keys and values
  std::int64_t head_dim;
  std::int64_t window;  // as in AttentionShape
  std::int64_t stride;  // of queries
  T* queries;
  std::int64_t key_stride;  // of keys and of values
  T* keys;
  T* values;
  std::int64_t out_stride;
  const T* out_grad;  // backward only
  T* out;             // read by the backward pass
  float* lse;         // of a head; those of the next are lse_stride behind
  std::int64_t lse_stride;

  // The keys that a query sees: from the first to before the last; neither falls from one query to the next.
  std::int64_t first_key(std::int64_t query) const { return window > 0 && offset + query >= window ? offset + query - window + 1 : 0; }
  std::int64_t last_key(std::int64_t query) const { return std::min(key_rows, offset + query + 1); }
};

template <typename T>
void attend(const HeadGroup<T>& group);
// Queries, keys and values become their gradients.
template <typename T>
void attend_backward(const HeadGroup<T>& group);

}  // namespace tessera::nn::kernels
