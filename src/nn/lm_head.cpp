#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <utility>

#include "model/transformer_cost.hpp"
#include "nn/head_input.hpp"
#include "nn/kernels/cross_entropy.hpp"
#include "nn/kernels/lookup.hpp"
#include "nn/linear.hpp"
#include "nn/transformer_layer.hpp"

namespace tessera::nn {
namespace {

class LmHead final : public Block {
 public:
  LmHead(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        vocab_(spec.dim("vocab")),
        held_columns_(model::shard_extent(vocab_, placement.tensor_size)),
        columns_(model::real_extent(vocab_, placement.tensor_size, placement.tensor_rank)),
        first_column_(placement.tensor_rank * held_columns_),
        biased_(has(spec, "head_transform")),
        input_(spec) {}

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    input_.bind(rest);
    // Padding is left out of the product: there are no logits of it that a softmax would have to leave out.
    std::vector<Parameter> real;
    for (const Parameter& parameter : rest.take(biased_ ? 2 : 1)) {
      real.push_back(parameter);
      real.back().value = parameter.value.narrow(0, 0, columns_);
      real.back().grad = parameter.grad.narrow(0, 0, columns_);
    }
    ensure(rest.empty(), "a language-model head has parameters that its dimensions do not ask for");
    projection_.bind(std::span(real).first(1), std::span(real).subspan(1));
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    const at::Tensor& input = inputs.at(0);
    const Rows rows(input, pass);
    Tensors kept(kKeptCount);
    at::Tensor normed = all_rows(input_.forward(input.view({rows.own(), hidden_}), rows, of_input(kept), pass), pass);
    saved.tensors.clear();

    if (!pass.batch->find("targets").defined()) {
      at::Tensor logits = at::empty({rows.count(), held_columns_}, rows.f32());
      projection_.forward(normed, logits);
      // Padding stands at the end, on the last rank.
      return {all_gather_columns(logits, pass).narrow(1, 0, vocab_).reshape({rows.batch, rows.seq, vocab_})};
    }
    kernels::check_tokens(pass.batch->at("targets"), -1, vocab_, "a target");
    const kernels::LossSum total = counted_losses(std::move(normed), kept[kNormedGrad], pass);
    if (pass.training) saved.tensors = std::move(kept);
    return {total.loss.to(at::kFloat), total.tokens};
  }

  Tensors backward_input(const Tensors&, Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == kKeptCount && kept[kNormedGrad].defined(), "backward_input without a training forward");
    at::Tensor normed_grad = own_sum(std::move(kept[kNormedGrad]), pass);
    const std::vector<std::int64_t> shape = {pass.batch->at("tokens").size(0), -1, hidden_};
    const Rows rows(normed_grad.view(shape), pass);
    return {input_.backward_input(std::move(normed_grad), rows, of_input(kept), pass).view(shape)};
  }

  void backward_weight(Saved& saved, const Pass& pass) override {
    Tensors kept = std::exchange(saved.tensors, {});
    input_.backward_weight(of_input(kept), pass);
  }

 private:
  // The input's, and the gradient of what it makes, of all rows.
  enum Kept { kNormedGrad = HeadInput::kKeptCount, kKeptCount };
  static std::span<at::Tensor> of_input(Tensors& kept) { return std::span(kept).first(HeadInput::kKeptCount); }

  // Rows whose targets do not count have no logits computed.
  kernels::LossSum counted_losses(at::Tensor normed, at::Tensor& normed_grad, const Pass& pass) {
    at::Tensor targets = pass.batch->at("targets").flatten();
    const std::int64_t rows = targets.numel();
    const at::Tensor counted = at::nonzero(targets >= 0).flatten();
    const bool some = counted.numel() < rows;
    if (some) {
      normed = normed.index_select(0, counted);
      targets = targets.index_select(0, counted);
    }
    at::Tensor grad = pass.training ? at::empty_like(normed) : at::Tensor();
    const kernels::LossSum total = losses(normed, targets, grad, pass);
    normed.reset();
    if (pass.training) normed_grad = some ? at::zeros({rows, hidden_}, grad.options()).index_copy_(0, counted, grad) : grad;
    return total;
  }

  // When training, logits' gradients go on at once into normed_grad and the projection's gradient.
  kernels::LossSum losses(const at::Tensor& normed, const at::Tensor& targets, at::Tensor& normed_grad, const Pass& pass) {
    const std::int64_t rows = normed.size(0);
    const std::int64_t chunk =
        std::min(rows, model::lm_head_chunk_rows(held_columns_, hidden_));  // as on all ranks, which exchange by chunks
    const at::TensorOptions f32 = normed.options().dtype(at::kFloat);
    at::Tensor logits_buffer = at::empty({chunk, columns_}, f32);
    const bool rounds = pass.training && normed.scalar_type() != at::kFloat;
    at::Tensor gradient_buffer = rounds ? at::empty({chunk, columns_}, normed.options()) : logits_buffer;
    at::Tensor maximum = at::empty({chunk}, f32);
    at::Tensor sums = at::empty({2, chunk}, f32);  // of exponentials, and the targets' logits

    kernels::LossSum total(normed);
    for (std::int64_t first = 0; first < rows; first += chunk) {
      const std::int64_t count = std::min(chunk, rows - first);
      const at::Tensor x = normed.narrow(0, first, count);
      const at::Tensor wanted = targets.narrow(0, first, count);
      at::Tensor logits = logits_buffer.narrow(0, 0, count);
      at::Tensor sum = sums[0].narrow(0, 0, count);
      at::Tensor target_logit = sums[1].narrow(0, 0, count);
      at::Tensor peak = maximum.narrow(0, 0, count);
      projection_.forward(x, logits);
      kernels::cross_entropy_maximum(logits, wanted, first_column_, peak, target_logit);
      all_reduce(maximum, pass, comm::Reduction::max);
      kernels::cross_entropy_exponentials(logits, peak, sum);
      all_reduce(sums, pass);
      kernels::add_losses(wanted, peak, sum, target_logit, total);
      if (!pass.training) continue;
      at::Tensor gradient = gradient_buffer.narrow(0, 0, count);
      kernels::cross_entropy_gradient(logits, wanted, first_column_, sum, pass.loss_scale, gradient);
      at::Tensor x_grad = normed_grad.narrow(0, first, count);
      projection_.backward_input(gradient, x_grad);
      projection_.backward_weight(gradient, x);
    }
    return total;
  }

  std::int64_t hidden_, vocab_;
  std::int64_t held_columns_;  // of the vocabulary, with padding
  std::int64_t columns_;       // without
  std::int64_t first_column_;
  bool biased_;
  HeadInput input_;
  std::vector<Parameter> parameters_;
  StackedLinear projection_;
};

}  // namespace

std::unique_ptr<Block> make_lm_head(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<LmHead>(spec, placement);
}

}  // namespace tessera::nn
