#include "model/recommender_cost.hpp"

#include <algorithm>

#include "model/work.hpp"

namespace tessera::model {
namespace {

constexpr std::int64_t kPooledPixels = 49;

// When all is computed again, only the input is held between the passes.
BlockCost finish(Work&& work, std::int64_t input, std::int64_t output, std::int64_t workspace, Recompute recompute) {
  const std::int64_t again = recompute == Recompute::full ? std::max<std::int64_t>(0, work.kept() - input) : 0;
  BlockCost cost = std::move(work).finish(input);
  cost.output = Bytes(output);
  cost.backward_workspace = Bytes(workspace + again);
  return cost;
}

}  // namespace

BlockCost mlp_cost(const BlockSpec& block, const BlockShard& shard) {
  Work work(shard);
  const std::int64_t rows = shard.micro_batch_size;
  const std::int64_t maps = block.dim("maps");
  const bool last_relu = block.dim("last_relu") != 0;
  const bool drops = block.dims.contains("dropout");
  if (block.dim("data") != 0) work.inputs_are_data();
  std::int64_t in = block.dim("width0");
  const bool pooled = block.dims.contains("pixels");
  const std::int64_t input = rows * work.element() * (pooled ? in / kPooledPixels * block.dim("pixels") : in);
  if (pooled) {
    if (shard.tensor_parallel > 1) work.exchange_backward({Exchange::Axis::tensor, "all_reduce", Bytes(input)});
    work.pointwise("average", input + rows * in * work.element(), input + rows * in * work.element());
  }
  std::int64_t widest = in;
  for (std::int64_t i = 1; i <= maps; ++i) {
    std::int64_t out = block.dim("width" + std::to_string(i));
    // Of VGG's: the first map's outputs and the second's inputs are divided.
    const bool sums = pooled && i == 2 && shard.tensor_parallel > 1;
    if (pooled && i == 1) out = shard_extent(out, shard.tensor_parallel);
    work.keep(rows * in * work.operand());
    work.linear("map", rows, out, in);
    const Bytes summed(rows * out * work.element());
    if (sums) work.exchange_forward({Exchange::Axis::tensor, "all_reduce", summed, false, 1, summed_pieces(rows, summed)});
    if (i < maps || last_relu) work.pointwise("relu", 2 * rows * out * work.element(), 3 * rows * out * work.element());
    // What was dropped is seen in what is kept of the next map's input.
    if (i < maps && drops) work.pointwise("dropout", 2 * rows * out * work.element(), 2 * rows * out * work.element());
    in = out;
    widest = std::max(widest, out);
  }
  const bool ends = block.dim("loss") != 0;
  if (ends) work.pointwise("loss", 3 * kF32Bytes * rows * in, 2 * kF32Bytes * rows * in);
  if (drops) work.keep(kF32Bytes * rows * in);
  const std::int64_t workspace = 2 * rows * widest * work.element();
  const std::int64_t output = ends ? kF32Bytes : rows * in * work.element();
  return finish(std::move(work), input, output, workspace, shard.recompute);
}

BlockCost embedding_tables_cost(const BlockSpec& block, const BlockShard& shard) {
  Work work(shard);
  const std::int64_t history = block.dims.contains("history") ? block.dim("history") : 0;
  const std::int64_t read = shard.micro_batch_size * (block.dim("tables") * block.dim("lookups") + history) * block.dim("dim");
  const std::int64_t output = shard.micro_batch_size * (block.dim("tables") + history) * block.dim("dim") * work.element();
  work.lookup("lookup", read * kF32Bytes + output, output + 2 * read * kF32Bytes);
  return finish(std::move(work), 0, output, read * kF32Bytes, shard.recompute);
}

BlockCost interaction_cost(const BlockSpec& block, const BlockShard& shard) {
  Work work(shard);
  const std::int64_t rows = shard.micro_batch_size;
  const std::int64_t features = block.dim("features");
  const std::int64_t dim = block.dim("dim");
  const std::int64_t input = rows * (features * dim + block.dim("dense")) * work.element();
  work.keep(input);
  std::int64_t output = 0;
  if (block.dim("machine") != 0) {
    const std::int64_t passes = block.dims.contains("wide") ? 1 : 2;
    work.pointwise("squares", passes * input, passes * input);
    output = input + rows * work.element();
  } else {
    work.product("dots", rows, features, features, dim);
    output = rows * (features * (features - 1) / 2 + dim) * work.element();
    work.pointwise("triangle", 2 * output, 2 * output);
  }
  return finish(std::move(work), input, output, input, shard.recompute);
}

BlockCost features_cost(const BlockSpec& block, const BlockShard& shard) {
  Work work(shard);
  const std::int64_t output = shard.micro_batch_size * block.dim("width") * work.element();
  const std::int64_t input = output - shard.micro_batch_size * block.dim("dense") * work.element();
  work.keep(input);
  work.pointwise("join", input + output, input + output);
  return finish(std::move(work), input, output, 0, shard.recompute);
}

BlockCost cross_cost(const BlockSpec& block, const BlockShard& shard) {
  Work work(shard);
  const std::int64_t rows = shard.micro_batch_size;
  const std::int64_t width = block.dim("width");
  const std::int64_t rank = block.dim("rank");
  const std::int64_t state = rows * width * work.element();
  const std::int64_t input = static_cast<std::int64_t>(block.inputs.size()) * state;
  work.keep(input);
  if (rank > 0) {
    work.linear("v", rows, rank, width);
    work.keep(rows * rank * work.operand());
  }
  work.linear(rank > 0 ? "u" : "map", rows, width, rank > 0 ? rank : width);
  work.keep(state);  // what the map makes, for the gradient of the features
  work.pointwise("cross", 4 * state, 5 * state);
  return finish(std::move(work), input, state, 2 * state, shard.recompute);
}

BlockCost target_attention_cost(const BlockSpec& block, const BlockShard& shard) {
  Work work(shard);
  const std::int64_t samples = shard.micro_batch_size;
  const std::int64_t history = block.dim("history");
  const std::int64_t dim = block.dim("dim");
  const std::int64_t rows = samples * history;
  const std::int64_t input = (samples * block.dim("tables") * dim + rows * dim) * work.element();
  work.keep(input);
  const std::int64_t pairs = rows * 4 * dim * work.element();
  work.pointwise("pairs", 2 * pairs, 2 * pairs);
  const std::int64_t maps = block.dim("maps");
  std::int64_t in = 4 * dim;
  std::int64_t widest = in;
  for (std::int64_t i = 1; i <= maps; ++i) {
    const std::int64_t out = block.dim("width" + std::to_string(i));
    work.keep(rows * in * work.operand());
    work.linear("map", rows, out, in);
    if (i < maps) work.pointwise("sigmoid", 2 * rows * out * work.element(), 3 * rows * out * work.element());
    in = out;
    widest = std::max(widest, out);
  }
  work.keep(rows * work.element());
  work.product("weighted_sum", samples, 1, dim, history);
  const std::int64_t output = samples * ((block.dim("tables") + 1) * dim + block.dim("dense")) * work.element();
  work.pointwise("join", 2 * output, 2 * output);
  return finish(std::move(work), input, output, 2 * rows * widest * work.element(), shard.recompute);
}

}  // namespace tessera::model
