#include "model/transformer_cost.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace tessera::model {
namespace {

// Sizes of one block on one rank, as numbers of elements.
struct Sizes {
  std::int64_t element;  // bytes
  std::int64_t rows;     // tokens
  std::int64_t hidden;
};

Sizes sizes_of(const BlockSpec& block, const BlockShard& shard) {
  return {element_size(shard.precision).value, shard.micro_batch * block.dim("seq"), block.dim("hidden")};
}

constexpr std::int64_t kF32 = 4;

Flops product(std::int64_t m, std::int64_t n, std::int64_t k) {
  return Flops(2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k));
}

}  // namespace

BlockCost embedding_cost(const BlockSpec& block, const BlockShard& shard) {
  const auto [element, rows, hidden] = sizes_of(block, shard);
  BlockCost cost;
  cost.output = Bytes(element * rows * hidden);
  cost.forward_traffic = 2L * cost.output;
  // The gradient of the output is read, and the rows of the table's f32 gradient are read and written.
  cost.backward_traffic = Bytes(rows * hidden * (element + 2 * kF32));
  cost.all_reduce_size = cost.output;
  cost.forward_all_reduces = shard.tensor_parallel > 1 ? 1 : 0;
  return cost;
}

BlockCost transformer_layer_cost(const BlockSpec& block, const BlockShard& shard) {
  const auto [element, rows, hidden] = sizes_of(block, shard);
  const std::int64_t degree = shard.tensor_parallel;
  const std::int64_t seq = block.dim("seq");
  const std::int64_t heads = block.dim("heads") / degree;
  const std::int64_t attended = heads * block.dim("head_dim");
  const std::int64_t qkv = attended + 2 * (block.dim("kv_heads") / degree) * block.dim("head_dim");
  const std::int64_t ffn = block.dim("ffn") / degree;

  BlockCost cost;
  const Flops projections = product(rows, qkv, hidden) + product(rows, hidden, attended) + product(rows, 2 * ffn, hidden) +
                            product(rows, hidden, ffn);
  const Flops scores = product(shard.micro_batch * heads * seq, seq, block.dim("head_dim"));
  // Backward: each projection twice; attention computes the scores again and then four products.
  cost.forward = projections + 2.0 * scores;
  cost.backward = 2.0 * projections + 5.0 * scores;

  const std::int64_t weights = hidden * (qkv + attended + 3 * ffn);
  const std::int64_t width = qkv + attended + 2 * ffn;  // what each row keeps beside input and middle
  cost.output = Bytes(element * rows * hidden);
  const std::int64_t kept = element * rows * (2 * hidden + width) + kF32 * rows * (2 + heads);
  const bool recomputed = shard.recompute == Recompute::full;
  cost.saved = Bytes(recomputed ? element * rows * hidden : kept);
  cost.forward_traffic = Bytes(element * (weights + rows * (9 * hidden + 2 * width + 2 * ffn)));
  cost.backward_traffic = Bytes(element * (2 * weights + rows * (20 * hidden + 5 * width + 6 * ffn)) + 2 * kF32 * weights);
  // Forward: the feed-forward network's hidden vector, beside what is kept and passed on. Backward: the gradients of the output
  // and of the middle of the layer and that hidden vector, beside the gradient passed on; weights come after, with the
  // hidden vector or one normalized input at a time.
  const std::int64_t row = element * rows;
  cost.forward_workspace = Bytes(row * (recomputed ? std::max(3 * ffn, qkv + attended) : ffn));
  cost.backward_workspace = Bytes(row * (2 * hidden + std::max(ffn + std::max(attended - hidden, 0L), hidden)) +
                                  (recomputed ? kept - row * hidden : 0));
  cost.forward_all_reduces = cost.backward_all_reduces = degree > 1 ? 2 : 0;
  cost.all_reduce_size = cost.output;
  return cost;
}

BlockCost lm_head_cost(const BlockSpec& block, const BlockShard& shard) {
  const auto [element, rows, hidden] = sizes_of(block, shard);
  const std::int64_t degree = shard.tensor_parallel;
  const std::int64_t vocab = block.dim("vocab") / degree;

  BlockCost cost;
  cost.forward = product(rows, vocab, hidden);
  cost.backward = 2.0 * cost.forward;
  cost.output = Bytes(kF32 + 8);
  const bool recomputed = shard.recompute == Recompute::full;
  cost.saved = Bytes(element * rows * hidden * (recomputed ? 1 : 2) + (recomputed ? 0 : kF32 * rows));
  const std::int64_t chunk = std::min(rows, lm_head_chunk_rows(vocab));
  const std::int64_t logits = vocab * (kF32 + (shard.precision == Precision::bf16 ? element : 0));
  cost.forward_workspace = Bytes(chunk * (logits + 3 * kF32) + element * rows * hidden);
  cost.backward_workspace = Bytes(kF32 * hidden + (recomputed ? element * rows * hidden + cost.forward_workspace.value : 0));
  cost.forward_traffic = Bytes(rows * (5 * hidden * element + 6 * vocab * kF32) + vocab * hidden * (2 * element + 2 * kF32));
  cost.backward_traffic = Bytes(4 * element * rows * hidden);
  cost.all_reduce_size = Bytes(element * rows * hidden);
  cost.backward_all_reduces = degree > 1 ? 1 : 0;
  return cost;
}

std::int64_t lm_head_chunk_rows(std::int64_t columns) {
  constexpr std::int64_t kChunkBytes = 16 << 20;
  constexpr std::int64_t kMinimumRows = 128;
  return std::max(kMinimumRows, kChunkBytes / (columns * kF32));
}

BlockCost cost_of(const BlockSpec& block, const BlockShard& shard) {
  if (block.kind == "embedding") return embedding_cost(block, shard);
  if (block.kind == "transformer_layer") return transformer_layer_cost(block, shard);
  if (block.kind == "lm_head") return lm_head_cost(block, shard);
  throw Error(ErrorCode::not_found, text("there is no cost formula for blocks of kind \"", block.kind, "\""),
              Where{"", 0, 0, -1, block.name}, "embedding, transformer_layer or lm_head");
}

Flops training_flops_per_sample(const ModelSpec& model) {
  Flops total;
  for (const Repeat& repeat : model.repeats) {
    const BlockCost cost = cost_of(repeat.block, BlockShard{});
    total += static_cast<double>(repeat.count) * (cost.forward + cost.backward);
  }
  return total;
}

}  // namespace tessera::model
