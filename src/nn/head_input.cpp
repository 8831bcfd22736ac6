#include "nn/head_input.hpp"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

namespace tessera::nn {

HeadInput::HeadInput(const model::BlockSpec& spec)
    : form_(has(spec, "gelu_exact") ? kernels::GeluForm::exact : kernels::GeluForm::tanh),
      norm_(spec),
      scale_(has(spec, "head_scale") ? spec.real("head_scale") : 1) {
  if (has(spec, "head_transform")) map_.emplace(stored_maps(spec));
  if (has(spec, "drops_normed")) drop_.emplace(spec, kEmbedded);
}

void HeadInput::bind(ParameterRow& parameters) {
  if (map_) {
    const auto weight = parameters.take(1);
    map_->bind(weight, parameters.take(1));
  }
  norm_.bind(parameters);
}

at::Tensor HeadInput::forward(const at::Tensor& x, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) const {
  at::Tensor mapped;
  at::Tensor activated = x;
  if (map_) {
    mapped = at::empty_like(x);
    map_->forward(x, mapped);
    activated = at::empty_like(x);
    kernels::gelu(mapped, activated, form_);
  }
  at::Tensor normed = at::empty_like(x);
  at::Tensor statistics = norm_.empty_statistics(rows);
  norm_.forward(activated, normed, statistics);
  if (drop_) drop_->apply(normed, rows, pass);
  if (scale_ != 1) normed.mul_(scale_);
  if (pass.training) {
    kept[kInput] = x;
    kept[kStatistics] = std::move(statistics);
    kept[kMapped] = std::move(mapped);
  }
  return normed;
}

at::Tensor HeadInput::backward_input(at::Tensor grad, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) const {
  if (drop_) drop_->apply(grad, rows, pass);
  if (scale_ != 1) grad.mul_(scale_);
  kept[kNormGrads] = at::empty({norm_.grad_count()}, grad.options().dtype(at::kFloat));
  if (!map_) {
    norm_.backward(grad, kept[kInput], kept[kStatistics], {}, grad, kept[kNormGrads]);
    kept[kInput].reset();
    return grad;
  }
  at::Tensor activated = at::empty_like(grad);
  kernels::gelu(kept[kMapped], activated, form_);
  norm_.backward(grad, activated, kept[kStatistics], {}, grad, kept[kNormGrads]);
  activated.reset();
  kernels::gelu_backward(kept[kMapped], grad, form_);
  map_->backward_input(kept[kMapped], grad);
  return grad;
}

void HeadInput::backward_weight(std::span<at::Tensor> kept, const Pass& pass) const {
  // Every rank holds the parameters, and has seen its own rows.
  PendingExchange norm_grads = pass.sequence_parallel ? PendingExchange::all_reduce(kept[kNormGrads], pass) : PendingExchange();
  if (map_) {
    PendingExchange input = PendingExchange::all_rows(kept[kInput], pass);
    PendingExchange mapped_grad = PendingExchange::all_rows(kept[kMapped], pass);
    const at::Tensor x = input.finish(pass);
    map_->backward_weight(mapped_grad.finish(pass), x);
  }
  norm_grads.finish(pass);
  norm_.add_grads(kept[kNormGrads]);
}

}  // namespace tessera::nn
