#include "nn/recommender.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tril_indices.h>

namespace tessera::nn {
namespace {

at::ScalarType type_of(model::Precision precision) { return precision == model::Precision::f32 ? at::kFloat : at::kBFloat16; }

// All bits (data/clicks/keys.hpp), as a tensor of i64 has them.
constexpr std::int64_t kAbsentKey = -1;
// In place of the infinite one, of which a sample without any key would make no number.
constexpr double kNoWeight = -1e30;

class EmbeddingTables final : public Block {
 public:
  void bind(std::vector<Parameter> parameters) override { ensure(parameters.empty(), "rows of tables are with parameter servers"); }
  const std::vector<Parameter>& parameters() const override { return none_; }
  Tensors forward(const Tensors&, Saved&, const Pass& pass) override {
    Tensors out = {pass.batch->at("rows").to(type_of(pass.precision))};
    if (const at::Tensor history = pass.batch->find("history_rows"); history.defined()) out.push_back(history.to(type_of(pass.precision)));
    return out;
  }
  Tensors backward_input(const Tensors& output_grads, Saved&, const Pass& pass) override {
    pass.batch->at("row_gradients").copy_(output_grads.at(0));
    if (output_grads.size() > 1) pass.batch->at("history_gradients").copy_(output_grads[1]);
    return {};
  }
  void backward_weight(Saved&, const Pass&) override {}

 private:
  std::vector<Parameter> none_;
};

Tensors click_loss(const at::Tensor& logits, const Pass& pass) {
  const at::Tensor labels = pass.batch->find("labels");
  if (!labels.defined()) return {logits};
  const at::Tensor counted = labels >= 0;
  const at::Tensor clicked = labels.clamp_min(0).to(at::kFloat);
  Tensors out = {at::binary_cross_entropy_with_logits(logits, clicked, counted.to(at::kFloat), {}, at::Reduction::Sum), counted.sum()};
  if (!pass.training && !pass.drops) out.push_back(at::stack({logits, clicked}).index({at::Tensor(), counted}));
  return out;
}

Tensors machine(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor& rows = inputs.at(0);
  const at::Tensor vectors = rows.narrow(2, 1, rows.size(2) - 1);
  at::Tensor logit = rows.select(2, 0).to(at::kFloat).sum(1, true);
  if (!block.dims.contains("wide")) {
    const at::Tensor exact = vectors.to(at::kFloat);
    // Over all pairs: (the square of the sum - the sum of the squares) / 2.
    const at::Tensor sum = exact.sum(1);
    logit = logit + 0.5 * (sum * sum - (exact * exact).sum(1)).sum(1, true);
  }
  Tensors features = {vectors.flatten(1)};
  if (block.dim("dense") > 0) {
    const at::Tensor dense = pass.batch->at("dense").to(rows.scalar_type());
    logit = logit + at::linear(dense, parameters.at(0));
    features.push_back(dense);
  }
  return {at::cat(features, 1), logit.to(rows.scalar_type())};
}

}  // namespace

std::unique_ptr<Block> make_embedding_tables(const model::BlockSpec&, const BlockPlacement&) { return std::make_unique<EmbeddingTables>(); }

Tensors interaction(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  if (block.dim("machine") != 0) return machine(block, inputs, parameters, pass);
  const at::Tensor& bottom = inputs.at(1);
  const at::Tensor all = at::cat({bottom.unsqueeze(1), inputs.at(0)}, 1);
  const at::Tensor pairs = at::tril_indices(all.size(1), all.size(1), -1, at::TensorOptions(all.device()).dtype(at::kLong));
  const at::Tensor places = pairs[0] * all.size(1) + pairs[1];
  return {at::cat({bottom, at::bmm(all, all.transpose(1, 2)).flatten(1).index_select(1, places)}, 1)};
}

Tensors features(const model::BlockSpec& block, const Tensors& inputs, const Tensors&, const Pass& pass) {
  Tensors parts = {inputs.at(0).flatten(1)};
  if (block.dim("dense") > 0) parts.push_back(pass.batch->at("dense").to(parts.front().scalar_type()));
  return {at::cat(parts, 1)};
}

Tensors cross(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass&) {
  const at::Tensor& x0 = inputs.at(0);
  const at::Tensor& x = inputs.back();
  const bool whole = block.dim("rank") == 0;
  const at::Tensor mapped = at::linear(whole ? x : at::linear(x, parameters.at(0)), parameters.at(whole ? 0 : 1), parameters.back());
  return {x0 * mapped + x};
}

Tensors target_attention(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor& rows = inputs.at(0);
  const at::Tensor& history = inputs.at(1);
  const at::Tensor target = rows.select(1, block.dim("target")).unsqueeze(1).expand_as(history);
  at::Tensor x = at::cat({history, target, target - history, target * history}, 2);
  for (std::size_t map = 0; 2 * map < parameters.size(); ++map) {
    x = at::linear(x, parameters[2 * map], parameters[2 * map + 1]);
    if (2 * map + 2 < parameters.size()) x = at::sigmoid(x);
  }
  const at::Tensor present = (pass.batch->at("history") != kAbsentKey).unsqueeze(2);
  at::Tensor weights = x.to(at::kFloat);
  if (block.dim("softmax") != 0) weights = at::softmax(weights.masked_fill(present.logical_not(), kNoWeight), 1);
  weights = weights.masked_fill(present.logical_not(), 0).to(history.scalar_type());
  Tensors parts = {rows.flatten(1), (weights * history).sum(1)};
  if (block.dim("dense") > 0) parts.push_back(pass.batch->at("dense").to(rows.scalar_type()));
  return {at::cat(parts, 1)};
}

Tensors perceptron(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  at::Tensor x = block.dim("data") != 0 ? pass.batch->at("dense").to(type_of(pass.precision)) : inputs.at(0);
  const bool joined = block.dims.contains("joined");
  if (joined) x = at::cat(inputs, 1);
  for (std::size_t map = 0; 2 * map < parameters.size(); ++map) {
    x = at::linear(x, parameters[2 * map], parameters[2 * map + 1]);
    if (2 * map + 2 < parameters.size() || block.dim("last_relu") != 0) x = at::relu(x);
  }
  if (block.dim("loss") == 0) return {x};
  at::Tensor logits = x.to(at::kFloat);
  if (inputs.size() > 1 && !joined) logits = logits + inputs[1].to(at::kFloat);
  return click_loss(logits.squeeze(1), pass);
}

}  // namespace tessera::nn
