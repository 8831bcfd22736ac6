#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/rms_norm.h>
#include <torch/csrc/autograd/autograd.h>

#include "nn/attention_maps.hpp"
#include "nn/autograd.hpp"
#include "nn/rotation.hpp"

namespace tessera::nn {
namespace {

constexpr double kNormEpsilon = 1e-6;  // of the vectors of low rank, whatever that of the hidden state is

class LatentMaps final : public AttentionMaps {
 public:
  LatentMaps(const model::BlockSpec& spec, const BlockPlacement& placement)
      : heads_(divided(spec, "heads", placement.tensor_size)),
        rank_(spec.dim("kv_lora")),
        nope_(spec.dim("nope_dim")),
        rope_(spec.dim("rope_dim")),
        v_dim_(spec.dim("v_dim")),
        of_low_rank_(has(spec, "q_lora")),
        score_scale_(spec.dims.contains("rope_score_scale") ? spec.real("rope_score_scale") : 1),
        rotation_(spec, rope_, placement.device) {}

  void bind(ParameterRow& parameters) override {
    parameters_ = parameters.take(of_low_rank_ ? 6 : 4);
    ensure(kLeaves + 1 + parameters_.size() <= kKeptCount, "there is no place for the leaves");
  }

  at::Tensor forward(const at::Tensor& normed, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    const WithAutograd autograd(pass.training);
    Tensors leaves = {leaf(normed, pass)};
    for (const Parameter& parameter : parameters_) leaves.push_back(leaf(parameter.value, pass));
    const at::Tensor made = computed(leaves, rows, pass);
    if (pass.training) {
      kept[kMade] = made;
      std::move(leaves.begin(), leaves.end(), kept.begin() + kLeaves);
    }
    return made.detach();
  }

  at::Tensor again(const Rows&, std::span<at::Tensor> kept, const Pass&) override { return kept[kMade].detach(); }

  at::Tensor backward_input(at::Tensor grads, const Rows&, std::span<at::Tensor> kept, const at::Tensor& shared_grads,
                            const Pass& pass) override {
    const auto leaves = kept.subspan(kLeaves, 1 + parameters_.size());
    Tensors made = torch::autograd::grad({std::exchange(kept[kMade], {})}, {leaves.begin(), leaves.end()}, {std::move(grads)});
    std::int64_t first = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      leaves[1 + i] = std::move(made[1 + i]);
      if (!is_shared(i)) continue;
      shared_grads.narrow(0, first, leaves[1 + i].numel()).copy_(std::exchange(leaves[1 + i], {}).flatten());
      first += parameters_[i].grad.numel();
    }
    leaves[0].reset();
    return own_sum(made[0].contiguous(), pass);
  }

  bool reads_input_again() const override { return false; }
  void backward_weight(const at::Tensor&, std::span<at::Tensor> kept) const override {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (!is_shared(i)) parameters_[i].grad.add_(kept[kLeaves + 1 + i]);
  }

  std::vector<Parameter> shared() const override {
    std::vector<Parameter> out;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (is_shared(i)) out.push_back(parameters_[i]);
    return out;
  }
  std::int64_t shared_count() const override {
    std::int64_t count = 0;
    for (const Parameter& parameter : shared()) count += parameter.grad.numel();
    return count;
  }

 private:
  // What the maps have made, with its graph, and behind it the graph's leaves: the input and the parameters, in whose places the input half
  // of the backward pass leaves gradients.
  enum Kept { kMade, kLeaves };

  bool is_shared(std::size_t parameter) const { return parameters_[parameter].spec->split_dim < 0; }

  static at::Tensor leaf(const at::Tensor& tensor, const Pass& pass) { return tensor.detach().requires_grad_(pass.training); }

  at::Tensor computed(const Tensors& leaves, const Rows& rows, const Pass& pass) {
    const at::Tensor& x = leaves.front();
    const at::Tensor turns = this->turns(rows, pass, x.device());
    const at::Tensor* next = &leaves[1];
    const auto linear = [&](const at::Tensor& in) { return at::linear(in, *next++); };
    const auto norm = [&](const at::Tensor& in) { return at::rms_norm(in, in.sizes().slice(1), *next++, kNormEpsilon); };
    at::Tensor queries = linear(x);
    if (of_low_rank_) queries = linear(norm(queries));
    if (score_scale_ != 1) queries = queries * score_scale_;
    queries = queries.view({rows.count(), heads_, nope_ + rope_});
    const at::Tensor low = linear(x);
    const at::Tensor keys_values = linear(norm(low.narrow(1, 0, rank_))).view({rows.count(), heads_, nope_ + v_dim_});
    // One part of the keys that is rotated, for all heads.
    const at::Tensor common = rotated(low.narrow(1, rank_, rope_).unsqueeze(1), turns).expand({rows.count(), heads_, rope_});
    const at::Tensor values = at::constant_pad_nd(keys_values.narrow(2, nope_, v_dim_), {0, nope_ + rope_ - v_dim_});
    const at::Tensor all = at::cat({at::cat({queries.narrow(2, 0, nope_), rotated(queries.narrow(2, nope_, rope_), turns)}, 2),
                                    at::cat({keys_values.narrow(2, 0, nope_), common}, 2), values},
                                   1);
    return all.view({rows.count(), 3 * heads_ * (nope_ + rope_)});
  }

  // Cosines and sines, f32 [2, rows, 1, rope_dim / 2].
  at::Tensor turns(const Rows& rows, const Pass& pass, at::Device device) {
    at::Tensor positions = Rotation::positions(rows, pass);
    if (!positions.defined())
      positions = at::arange(pass.position, pass.position + rows.seq, at::TensorOptions(at::kLong).device(device)).repeat({rows.batch});
    return rotation_.table(rows, pass).index_select(1, positions.flatten()).unsqueeze(2);
  }

  // x [rows, heads, rope_dim]; dimension 2i turns with 2i + 1. The results stand behind one another, not side by side: queries and keys
  // alike, so that their products are the same.
  at::Tensor rotated(const at::Tensor& x, const at::Tensor& turns) const {
    const at::Tensor pairs = x.to(at::kFloat).unflatten(2, {rope_ / 2, 2});
    const at::Tensor first = pairs.select(3, 0), second = pairs.select(3, 1);
    const at::Tensor cos = turns.select(0, 0), sin = turns.select(0, 1);
    return at::cat({first * cos - second * sin, second * cos + first * sin}, 2).to(x.scalar_type());
  }

  std::int64_t heads_, rank_, nope_, rope_, v_dim_;
  bool of_low_rank_;    // queries
  double score_scale_;  // of products of queries and keys, beside that by their width
  Rotation rotation_;
  std::span<const Parameter> parameters_;
};

}  // namespace

std::unique_ptr<AttentionMaps> make_latent_maps(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<LatentMaps>(spec, placement);
}

}  // namespace tessera::nn
