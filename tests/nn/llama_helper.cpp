#include "nn/llama_helper.hpp"

#include <ATen/ATen.h>
#include <cmath>

#include "base/random.hpp"

namespace tessera::nn::test {

namespace {

constexpr double kFactor = 8, kLow = 1, kHigh = 4, kOriginal = 16;

}  // namespace

model::ModelSpec llama(const Dims& d) {
  std::string more;
  if (d.tied) more += ", tied: true";
  if (d.window > 0) more += text(", window: ", d.window);
  if (d.qkv_bias) more += ", qkv_bias: true";
  if (d.qk_norm) more += ", qk_norm: true";
  if (d.scaled)
    more += text(", rope_scaling: {rope_type: llama3, factor: ", kFactor, ", low_freq_factor: ", kLow, ", high_freq_factor: ", kHigh,
                 ", original_max_position_embeddings: ", kOriginal, "}");
  return model::read_model(
      ConfigNode::parse(text("{arch: llama, hidden: ", d.hidden, ", layers: ", d.layers, ", heads: ", d.heads, ", kv_heads: ", d.kv_heads,
                             ", head_dim: ", d.head(), ", ffn: ", d.ffn, ", seq: ", d.seq, ", vocab: ", d.vocab, more, "}"),
                        "test.yaml"));
}

std::map<std::string, at::Tensor> whole_parameters(const model::ModelSpec& spec, std::uint64_t seed) {
  std::map<std::string, at::Tensor> whole;
  for (const model::BlockInstance& instance : spec.blocks()) {
    for (const model::ParameterSpec& parameter : instance.spec->parameters) {
      if (!parameter.tied_to.empty()) continue;
      const std::string name = instance.parameter_name(parameter);
      at::Tensor value = at::empty(parameter.shape, at::kFloat);
      model::ParameterSpec wide = parameter;
      // Larger than in training, and norms away from one, so that every term of the gradients matters.
      wide.init = {"normal", parameter.init.kind == "ones" ? 0.2 : 0.15};
      initialize(wide, name, seed, {}, value);
      if (parameter.init.kind == "ones") value.add_(1.0);
      whole[name] = value;
    }
  }
  return whole;
}

at::Tensor shard_of(const at::Tensor& whole, const model::ParameterSpec& spec, const BlockPlacement& placement) {
  if (spec.split_dim < 0) return whole;
  const std::int64_t each = (whole.size(spec.split_dim) + placement.tensor_size - 1) / placement.tensor_size;
  std::vector<std::int64_t> shape = whole.sizes().vec();
  shape[static_cast<std::size_t>(spec.split_dim)] = each;
  at::Tensor out = at::zeros(shape, whole.options());
  const std::int64_t first = each * placement.tensor_rank;
  const std::int64_t real = std::min(each, whole.size(spec.split_dim) - first);
  out.narrow(spec.split_dim, 0, real).copy_(whole.narrow(spec.split_dim, first, real));
  return out;
}

Model::Model(const model::ModelSpec& spec, const std::map<std::string, at::Tensor>& whole, model::Precision precision,
             BlockPlacement placement, Layout layout) {
  const auto dtype = precision == model::Precision::f32 ? at::kFloat : at::kBFloat16;
  for (const model::BlockInstance& instance : spec.blocks()) {
    std::int64_t count = 0;
    for (const auto& p : instance.spec->parameters) count += shard_of(at::empty(p.shape), p, placement).numel();
    const at::Tensor values = at::empty({count}, dtype);
    const at::Tensor grads = at::zeros({count}, at::kFloat);
    std::vector<Parameter> parameters;
    std::int64_t offset = 0;
    for (const auto& p : instance.spec->parameters) {
      const std::string name = instance.parameter_name(p);
      const bool tied = !p.tied_to.empty();
      const at::Tensor initial = shard_of(whole.at(tied ? p.tied_to : name), p, placement);
      at::Tensor value =
          layout == Layout::flat ? values.narrow(0, offset, initial.numel()).view(initial.sizes()) : at::empty(initial.sizes(), dtype);
      at::Tensor grad =
          layout == Layout::flat ? grads.narrow(0, offset, initial.numel()).view(initial.sizes()) : at::zeros(initial.sizes(), at::kFloat);
      if (tied) grad = grads_.at(p.tied_to);
      value.copy_(initial);
      offset += initial.numel();
      if (!tied) grads_[name] = grad;
      parameters.push_back({&p, name, value, grad});
    }
    blocks_.push_back(make_block(*instance.spec, placement));
    blocks_.back()->bind(std::move(parameters));
  }
}

Model::Step Model::step(const Pass& pass, bool recompute) {
  std::vector<Saved> saved(blocks_.size());
  std::vector<Tensors> inputs(blocks_.size() + 1);
  Pass first = pass;
  first.training = !recompute;
  for (std::size_t b = 0; b < blocks_.size(); ++b) inputs[b + 1] = blocks_[b]->forward(inputs[b], saved[b], first);
  const Step result{inputs.back().at(0).item<double>(), inputs.back().at(1).item<std::int64_t>()};
  Tensors grads;
  for (std::size_t b = blocks_.size(); b-- > 0;) {
    if (recompute) blocks_[b]->forward(inputs[b], saved[b], pass);
    grads = blocks_[b]->backward_input(grads, saved[b], pass);
    blocks_[b]->backward_weight(saved[b], pass);
  }
  return result;
}

double Model::evaluate(Pass pass) {
  pass.training = false;
  Tensors values;
  for (auto& block : blocks_) {
    Saved saved;
    values = block->forward(values, saved, pass);
  }
  return values.at(0).item<double>();
}

at::Tensor Model::logits(Pass pass, std::vector<KeyValueCache>* caches) {
  pass.training = false;
  Tensors values;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    Saved saved;
    const bool layer = b > 0 && b + 1 < blocks_.size();
    pass.cache = layer && caches != nullptr ? &caches->at(b - 1) : nullptr;
    values = blocks_[b]->forward(values, saved, pass);
  }
  return values.at(0);
}

namespace {

at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) { return x * at::rsqrt(x.pow(2).mean(-1, true) + 1e-5) * weight; }

// Frequencies by wave length, as the paper's figure and transformers' modeling_rope_utils.py have them.
at::Tensor frequencies(std::int64_t head_dim, bool scaled) {
  const at::Tensor plain = at::pow(10000.0, -at::arange(0, head_dim, 2, at::kFloat) / head_dim);
  if (!scaled) return plain;
  const at::Tensor waves_within = kOriginal * plain / (2 * M_PI);
  const at::Tensor smooth = ((waves_within - kLow) / (kHigh - kLow)).clamp(0, 1);
  return (1 - smooth) * plain / kFactor + smooth * plain;
}

at::Tensor rotate(const at::Tensor& x, bool scaled) {  // [batch, heads, seq, head_dim]
  const std::int64_t half = x.size(3) / 2;
  const at::Tensor angle = at::outer(at::arange(x.size(2), at::kFloat), frequencies(2 * half, scaled)).repeat({1, 2});
  const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return x * angle.cos() + turned * angle.sin();
}

}  // namespace

Reference reference(const Dims& d, const std::map<std::string, at::Tensor>& parameters, const Batch& batch, double scale) {
  std::map<std::string, at::Tensor> p;
  for (const auto& [name, value] : parameters) p[name] = value.to(at::kFloat).clone().set_requires_grad(true);
  const std::int64_t samples = batch.at("tokens").size(0);
  const std::int64_t seq = batch.at("tokens").size(1);
  at::Tensor x = p.at("model.embed_tokens.weight").index_select(0, batch.at("tokens").flatten()).view({samples, seq, d.hidden});
  const at::Tensor hidden = at::full({seq, seq}, -INFINITY, at::kFloat);
  const at::Tensor mask = d.window > 0 ? hidden.triu(1) + hidden.tril(-d.window) : hidden.triu(1);
  for (std::int64_t l = 0; l < d.layers; ++l) {
    const std::string prefix = "model.layers." + std::to_string(l) + ".";
    const auto weight = [&](const std::string& name) { return p.at(prefix + name + ".weight"); };
    const auto heads = [&](const at::Tensor& n, const std::string& name, std::int64_t count) {
      const std::string map = "self_attn." + name + "_proj";
      const at::Tensor bias = d.qkv_bias ? p.at(prefix + map + ".bias") : at::Tensor();
      const at::Tensor split = at::linear(n, weight(map), bias).view({samples, seq, count, d.head()});
      return (d.qk_norm && name != "v" ? norm(split, weight("self_attn." + name + "_norm")) : split).transpose(1, 2);
    };
    const at::Tensor n1 = norm(x, weight("input_layernorm"));
    const at::Tensor q = rotate(heads(n1, "q", d.heads), d.scaled);
    const at::Tensor k = rotate(heads(n1, "k", d.kv_heads), d.scaled).repeat_interleave(d.heads / d.kv_heads, 1);
    const at::Tensor v = heads(n1, "v", d.kv_heads).repeat_interleave(d.heads / d.kv_heads, 1);
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(d.head())) + mask;
    const at::Tensor mixed = at::matmul(at::softmax(scores, -1), v).transpose(1, 2).reshape({samples, seq, d.heads * d.head()});
    x = x + at::linear(mixed, weight("self_attn.o_proj"));
    const at::Tensor n2 = norm(x, weight("post_attention_layernorm"));
    x = x + at::linear(at::silu(at::linear(n2, weight("mlp.gate_proj"))) * at::linear(n2, weight("mlp.up_proj")), weight("mlp.down_proj"));
  }
  const at::Tensor head = p.count("lm_head.weight") != 0 ? p.at("lm_head.weight") : p.at("model.embed_tokens.weight");
  const at::Tensor logits = at::linear(norm(x, p.at("model.norm.weight")), head).flatten(0, 1);
  const at::Tensor loss = at::cross_entropy_loss(logits, batch.at("targets").flatten(), {}, at::Reduction::Sum, -1);
  (loss * scale).backward();
  Reference result;
  result.loss = loss.item<double>();
  for (const auto& [name, value] : p) result.grads[name] = value.grad();
  return result;
}

Batch random_batch(const Dims& d, std::int64_t samples, std::uint64_t seed) {
  Random random(seed);
  const at::Tensor tokens = at::empty({samples, d.seq}, at::kLong);
  const at::Tensor targets = at::empty({samples, d.seq}, at::kLong);
  for (std::int64_t i = 0; i < samples * d.seq; ++i) {
    tokens.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(d.vocab)));
    const bool counted = random.below(10) != 0;
    targets.data_ptr<std::int64_t>()[i] = counted ? static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(d.vocab))) : -1;
  }
  return {{{"tokens", tokens}, {"targets", targets}}};
}

bool cancels(const std::string& name) { return name.ends_with("k_proj.bias"); }

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kFloat) - b.to(at::kFloat)).abs().max() / b.to(at::kFloat).abs().max()).item<double>();
}

}  // namespace tessera::nn::test
