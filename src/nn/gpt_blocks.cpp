#include "nn/gpt_blocks.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <cmath>
#include <limits>

#include "nn/autograd_block.hpp"
#include "nn/dropout.hpp"
#include "nn/kernels/lookup.hpp"

namespace tessera::nn {
namespace {

void require_whole(const model::BlockSpec& spec, const BlockPlacement& placement) {
  if (placement.tensor_size > 1)
    throw Error(ErrorCode::invalid_config, text("blocks of kind ", spec.kind, " are not cut by tensor parallelism"),
                {"", 0, 0, -1, spec.name}, "tp 1");
}

// The parameters of a block by name, without what stands before the last parts of it: "ln_1.weight".
class Named {
 public:
  Named(const model::BlockSpec& spec, const Tensors& parameters) : spec_(spec), parameters_(parameters) {}

  // Undefined where the block has none.
  at::Tensor find(const std::string& name) const {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (spec_.parameters[i].name.ends_with(name)) return parameters_[i];
    return {};
  }
  at::Tensor at(const std::string& name) const {
    const at::Tensor found = find(name);
    ensure(found.defined(), text(spec_.name, " has no parameter ", name));
    return found;
  }
  at::Tensor norm(const at::Tensor& x, const std::string& name) const {
    return at::layer_norm(x, {x.size(-1)}, at(name + ".weight"), find(name + ".bias"), spec_.real("norm_eps"));
  }
  // GPT-2 stores linear maps as [in, out].
  at::Tensor map(const at::Tensor& x, const std::string& name) const {
    const at::Tensor bias = find(name + ".bias");
    const at::Tensor rows = x.reshape({-1, x.size(-1)});
    const at::Tensor weight = at(name + ".weight");
    const at::Tensor out = bias.defined() ? at::addmm(bias, rows, weight) : at::matmul(rows, weight);
    return out.view({x.size(0), x.size(1), weight.size(1)});
  }

 private:
  const model::BlockSpec& spec_;
  const Tensors& parameters_;
};

bool has(const model::BlockSpec& spec, const char* key) {
  const auto found = spec.dims.find(key);
  return found != spec.dims.end() && found->second != 0;
}

double dropped_share(const model::BlockSpec& spec) {
  const auto found = spec.dims.find("dropout");
  return found == spec.dims.end() ? 0 : found->second;
}

// Of dropout within a layer.
enum Site { kScores, kAttended, kFeedForward };

// Each token's place: in its document, or behind the tokens that were seen.
at::Tensor places_of(const Pass& pass) {
  if (const at::Tensor positions = pass.batch->find("positions"); positions.defined()) return positions;
  return at::arange(pass.position, pass.position + pass.batch->at("tokens").size(1), at::kLong);
}

Tensors embed(const model::BlockSpec& spec, const Tensors& parameters, const Pass& pass) {
  const Named named(spec, parameters);
  kernels::check_tokens(pass.batch->at("tokens"), 0, spec.dim("vocab"), "a token");
  at::Tensor hidden = at::embedding(named.at("wte.weight"), pass.batch->at("tokens"));
  if (const at::Tensor table = named.find("wpe.weight"); table.defined()) hidden = hidden + at::embedding(table, places_of(pass));
  if (has(spec, "embedding_norm")) hidden = named.norm(hidden, "ln_e");
  return {dropout(hidden, dropped_share(spec), 0, pass)};
}

// Which keys each query sees: those of its document that do not lie behind it. Undefined where the kernel's causal mask says the same.
at::Tensor mask_of(const Pass& pass, std::int64_t queries, std::int64_t keys) {
  const at::Tensor positions = pass.batch->find("positions");
  if (!positions.defined() && queries == keys) return {};
  const at::Tensor key = at::arange(keys, at::kLong);
  const at::Tensor query = at::arange(keys - queries, keys, at::kLong).unsqueeze(1);
  const at::Tensor causal = key <= query;
  if (!positions.defined()) return causal;
  // Where the document of each token began.
  const at::Tensor begin = at::arange(keys, at::kLong) - positions;
  return (causal.logical_and(begin.unsqueeze(2) == begin.unsqueeze(1))).unsqueeze(1);
}

// The fused kernel draws masks of its own, which depend on the order of calls.
at::Tensor attended_with_dropout(const model::BlockSpec& spec, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                 const at::Tensor& mask, const Pass& pass) {
  const at::Tensor scores = at::matmul(query, key.transpose(2, 3)) / std::sqrt(static_cast<double>(query.size(3)));
  const at::Tensor seen = mask.defined() ? mask : at::ones({query.size(2), key.size(2)}, at::kBool).tril();
  const at::Tensor shares = at::softmax(scores.masked_fill(seen.logical_not(), -std::numeric_limits<float>::infinity()), -1);
  return at::matmul(dropout(shares, dropped_share(spec), kScores, pass), value);
}

at::Tensor attention(const model::BlockSpec& spec, const Named& named, const at::Tensor& x, const Pass& pass) {
  const std::int64_t heads = spec.dim("heads");
  const std::int64_t kv_heads = spec.dim("kv_heads");
  const std::int64_t width = spec.dim("head_dim");
  const std::int64_t batch = x.size(0);
  const std::int64_t seq = x.size(1);
  const at::Tensor qkv = named.map(x, "attn.c_attn");
  const auto part = [&](std::int64_t first, std::int64_t count) {
    return qkv.narrow(2, first * width, count * width).view({batch, seq, count, width}).transpose(1, 2);
  };
  const at::Tensor query = part(0, heads);
  at::Tensor key = part(heads, kv_heads);
  at::Tensor value = part(heads + kv_heads, kv_heads);
  if (pass.cache != nullptr) {
    pass.cache->keys.narrow(2, pass.position, seq).copy_(key);
    pass.cache->values.narrow(2, pass.position, seq).copy_(value);
    key = pass.cache->keys.narrow(2, 0, pass.position + seq);
    value = pass.cache->values.narrow(2, 0, pass.position + seq);
  }
  if (heads != kv_heads) {
    key = key.repeat_interleave(heads / kv_heads, 1);
    value = value.repeat_interleave(heads / kv_heads, 1);
  }
  const at::Tensor mask = mask_of(pass, seq, key.size(2));
  const std::optional<at::Tensor> seen = mask.defined() ? std::optional(mask) : std::nullopt;
  const at::Tensor attended = pass.drops && dropped_share(spec) > 0
                                  ? attended_with_dropout(spec, query, key, value, mask, pass)
                                  : at::scaled_dot_product_attention(query, key, value, seen, 0.0, !mask.defined());
  return named.map(attended.transpose(1, 2).reshape({batch, seq, heads * width}), "attn.c_proj");
}

Tensors layer(const model::BlockSpec& spec, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const Named named(spec, parameters);
  const double dropped = dropped_share(spec);
  const at::Tensor attended = attention(spec, named, named.norm(inputs.at(0), "ln_1"), pass);
  const at::Tensor middle = inputs.at(0) + dropout(attended, dropped, kAttended, pass);
  at::Tensor hidden = named.map(named.norm(middle, "ln_2"), "mlp.c_fc");
  if (has(spec, "gated")) {
    const std::int64_t ffn = spec.dim("ffn");
    hidden = at::gelu(hidden.narrow(2, 0, ffn), "tanh") * hidden.narrow(2, ffn, ffn);
  } else {
    hidden = at::gelu(hidden, "tanh");
  }
  return {middle + dropout(named.map(hidden, "mlp.c_proj"), dropped, kFeedForward, pass)};
}

Tensors head(const model::BlockSpec& spec, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const Named named(spec, parameters);
  const at::Tensor logits = at::linear(named.norm(inputs.at(0), "ln_f"), named.at("lm_head.weight")).to(at::kFloat);
  const at::Tensor targets = pass.batch->find("targets");
  if (!targets.defined()) return {logits};
  kernels::check_tokens(targets, -1, spec.dim("vocab"), "a target");
  const at::Tensor loss = at::cross_entropy_loss(logits.reshape({-1, logits.size(2)}), targets.reshape({-1}), {}, at::Reduction::Sum, -1);
  return {loss, (targets >= 0).sum()};
}

}  // namespace

std::unique_ptr<Block> make_position_embedding(const model::BlockSpec& spec, const BlockPlacement& placement) {
  require_whole(spec, placement);
  return make_autograd_block(spec,
                             [spec](const Tensors&, const Tensors& parameters, const Pass& pass) { return embed(spec, parameters, pass); });
}

std::unique_ptr<Block> make_gpt_layer(const model::BlockSpec& spec, const BlockPlacement& placement) {
  require_whole(spec, placement);
  return make_autograd_block(
      spec, [spec](const Tensors& inputs, const Tensors& parameters, const Pass& pass) { return layer(spec, inputs, parameters, pass); });
}

std::unique_ptr<Block> make_language_head(const model::BlockSpec& spec, const BlockPlacement& placement) {
  require_whole(spec, placement);
  return make_autograd_block(
      spec, [spec](const Tensors& inputs, const Tensors& parameters, const Pass& pass) { return head(spec, inputs, parameters, pass); });
}

}  // namespace tessera::nn
