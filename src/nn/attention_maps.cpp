#include "nn/attention_maps.hpp"

#include <optional>

#include "nn/kernels/norm.hpp"
#include "nn/linear.hpp"
#include "nn/rotation.hpp"

namespace tessera::nn {
namespace {

class PlainMaps final : public AttentionMaps {
 public:
  PlainMaps(const model::BlockSpec& spec, const BlockPlacement& placement)
      : hidden_(spec.dim("hidden")),
        heads_(divided(spec, "heads", placement.tensor_size)),
        kv_heads_(divided(spec, "kv_heads", placement.tensor_size)),
        head_dim_(spec.dim("head_dim")),
        map_count_(!has(spec, "maps_in_out") ? 3
                   : heads_ == kv_heads_     ? 1
                                             : 2),
        biased_(has(spec, "qkv_bias") || has(spec, "biases")),
        normalizes_heads_(has(spec, "qk_norm")),
        epsilon_(spec.real("norm_eps")),
        maps_(stored_maps(spec)) {
    if (!spec.dims.contains("rotary") || has(spec, "rotary")) rotation_.emplace(spec, head_dim_, placement.device);
  }

  void bind(ParameterRow& parameters) override {
    const auto weights = parameters.take(map_count_);
    maps_.bind(weights, parameters.take(biased_ ? map_count_ : 0));
  }
  void bind_rest(ParameterRow& parameters) override { head_norms_ = parameters.take(normalizes_heads_ ? 2 : 0); }

  at::Tensor forward(const at::Tensor& normed, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    at::Tensor qkv = rows.empty(maps_.out_width());
    maps_.forward(normed, qkv);
    at::Tensor turned = turn(qkv, rows, pass);
    if (pass.training) kept[kQkv] = std::move(qkv);
    return turned;
  }

  at::Tensor again(const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) override {
    return normalizes_heads_ ? turn(kept[kQkv], rows, pass) : kept[kQkv];
  }

  at::Tensor backward_input(at::Tensor grads, const Rows& rows, std::span<at::Tensor> kept, const at::Tensor& shared_grads,
                            const Pass& pass) override {
    rotate(grads, rows, pass, true);
    if (normalizes_heads_) {
      at::Tensor weight_grads = shared_grads.view({2, head_dim_});
      kernels::rms_norm_heads_backward(kept[kQkv], {heads_, kv_heads_, head_dim_}, head_norms_[0].value, head_norms_[1].value, epsilon_,
                                       grads, weight_grads);
    }
    kept[kQkv] = std::move(grads);
    return own_sum_of(kept[kQkv], hidden_, pass, [&](const at::Tensor& in, at::Tensor& out) { maps_.backward_input(in, out); });
  }

  bool reads_input_again() const override { return true; }
  void backward_weight(const at::Tensor& normed, std::span<at::Tensor> kept) const override { maps_.backward_weight(kept[kQkv], normed); }

  std::vector<Parameter> shared() const override { return {head_norms_.begin(), head_norms_.end()}; }
  std::int64_t shared_count() const override { return normalizes_heads_ ? 2 * head_dim_ : 0; }

 private:
  enum Kept { kQkv };  // what the maps have made, rotated in place unless heads are normalized; then its gradient

  // Rotated in place or, where heads are normalized, both in a new tensor.
  at::Tensor turn(const at::Tensor& qkv, const Rows& rows, const Pass& pass) {
    at::Tensor turned = qkv;
    if (normalizes_heads_) {
      turned = rows.empty(maps_.out_width());
      kernels::rms_norm_heads(qkv, {heads_, kv_heads_, head_dim_}, head_norms_[0].value, head_norms_[1].value, epsilon_, turned);
    }
    rotate(turned, rows, pass, false);
    return turned;
  }

  void rotate(at::Tensor& qkv, const Rows& rows, const Pass& pass, bool inverse) {
    if (rotation_)
      kernels::rope(qkv, heads_ + kv_heads_, head_dim_, rows.seq, pass.position, rotation_->table(rows, pass), inverse,
                    Rotation::positions(rows, pass));
  }

  std::int64_t hidden_, heads_, kv_heads_, head_dim_;
  std::size_t map_count_;  // of which queries, keys and values come
  bool biased_, normalizes_heads_;
  double epsilon_;
  std::optional<Rotation> rotation_;
  StackedLinear maps_;
  std::span<const Parameter> head_norms_;  // of the queries and of the keys, or none
};

}  // namespace

std::unique_ptr<AttentionMaps> make_attention_maps(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return has(spec, "kv_lora") ? make_latent_maps(spec, placement) : std::make_unique<PlainMaps>(spec, placement);
}

}  // namespace tessera::nn
