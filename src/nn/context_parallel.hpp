// Internal: attention over sequences of which each context-parallel rank holds a part (nn/sequence.hpp).
//
// Ring (Liu et al. 2023): keys and values go round the ranks, and each rank merges what its queries see of them by the logarithmic sums of
// the scores. In the backward pass their gradients, in f32, go round behind them, one step later.
// Ulysses (Jacobs et al. 2023): each rank gets some heads of the whole sequences. Fewer key-value heads than ranks are sent repeatedly.
#pragma once

#include <vector>

#include "nn/block.hpp"
#include "nn/kernels/attention.hpp"

namespace tessera::nn {

// What is dropped of the shares of keys in queries (kernels/dropped_attention.hpp), the same however heads and sequences are cut.
struct ScoreDropout {
  double probability = 0;            // 0: nothing
  std::vector<std::uint64_t> seeds;  // of each sample
  std::int64_t first_head = 0;       // of this rank's among the model's
};

// Both do what the kernels of the same names do where the pass has no context group and drops nothing. With one, rows are this rank's,
// `shape` says how many these are, and its segments are those of the whole sequences. The queries and keys are rotated.
// `lse` is what the backward pass takes: f32, of the shape that lse_sizes() gives.
void attention(const at::Tensor& qkv, const kernels::AttentionShape& shape, const ScoreDropout& dropout, const Pass& pass, at::Tensor& out,
               at::Tensor& lse);
void attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const kernels::AttentionShape& shape,
                        const ScoreDropout& dropout, const Pass& pass, at::Tensor& qkv);
std::vector<std::int64_t> lse_sizes(const kernels::AttentionShape& shape, const Pass& pass);

}  // namespace tessera::nn
