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
  const std::int64_t input = rows * work.element() * (block.dims.contains("pixels") ? in / kPooledPixels * block.dim("pixels") : in);
  if (block.dims.contains("pixels")) {
    work.pointwise("average", input + rows * in * work.element(), input + rows * in * work.element());
    work.keep(input);
  }
  std::int64_t widest = in;
  for (std::int64_t i = 1; i <= maps; ++i) {
    const std::int64_t out = block.dim("width" + std::to_string(i));
    work.keep(rows * in * work.operand());
    work.linear("map", rows, out, in);
    if (i < maps || last_relu) work.pointwise("relu", 2 * rows * out * work.element(), 3 * rows * out * work.element());
    if (i < maps && drops) {
      // What is dropped is drawn again, and ReLU's result is kept beside what is left of it.
      work.pointwise("dropout", 2 * rows * out * work.element(), 2 * rows * out * work.element());
      work.keep(rows * out * work.element());
    }
    in = out;
    widest = std::max(widest, out);
  }
  const bool ends = block.dim("loss") != 0;
  if (ends) work.pointwise("loss", 3 * kF32Bytes * rows * in, 2 * kF32Bytes * rows * in);
  if (drops) work.keep(kF32Bytes * rows * in);
  // Autograd makes gradients of weights beside those that they are added to.
  const std::int64_t gradients = drops ? block.parameter_count() * work.element() : 0;
  const std::int64_t workspace = 2 * rows * widest * work.element() + gradients;
  const std::int64_t output = ends ? kF32Bytes : rows * in * work.element();
  return finish(std::move(work), input, output, workspace, shard.recompute);
}

BlockCost embedding_tables_cost(const BlockSpec& block, const BlockShard& shard) {
  Work work(shard);
  const std::int64_t read = shard.micro_batch_size * block.dim("tables") * block.dim("lookups") * block.dim("dim");
  const std::int64_t output = shard.micro_batch_size * block.dim("tables") * block.dim("dim") * work.element();
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
    work.pointwise("squares", 2 * input, 2 * input);
    output = input + rows * dim * work.element();
  } else {
    work.product("dots", rows, features, features, dim);
    output = rows * (features * (features - 1) / 2 + dim) * work.element();
    work.pointwise("triangle", 2 * output, 2 * output);
  }
  return finish(std::move(work), input, output, input, shard.recompute);
}

}  // namespace tessera::model
