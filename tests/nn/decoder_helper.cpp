#include "nn/decoder_helper.hpp"

#include <ATen/ATen.h>
#include <cmath>

#include "base/random.hpp"
#include "nn/autograd.hpp"
#include "nn/dropout.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/gemm_avx512.hpp"

namespace tessera::nn::test {

namespace {

constexpr double kFactor = 8, kLow = 1, kHigh = 4, kOriginal = 16;

}  // namespace

model::ModelSpec decoder(const Dims& d) {
  if (d.bert)
    return model::read_model(
        ConfigNode::parse(text("{arch: bert, hidden: ", d.hidden, ", layers: ", d.layers, ", heads: ", d.heads, ", ffn: ", d.ffn,
                               ", seq: ", d.seq, ", vocab: ", d.vocab, ", max_positions: ", d.seq, ", tied: ", d.tied ? "true" : "false",
                               ", dropout: ", d.dropout, ", split_layers: ", d.split ? "true" : "false", "}"),
                          "test.yaml"));
  std::string more = text(", dropout: ", d.dropout);
  if (d.gpt)
    more += text(", gated: ", d.gated ? "true" : "false", ", biases: ", d.biases ? "true" : "false",
                 ", embedding_norm: ", d.embedding_norm ? "true" : "false", ", positions: ", d.positions,
                 ", tied: ", d.tied ? "true" : "false");
  else if (d.tied)
    more += ", tied: true";
  if (d.window > 0) more += text(", window: ", d.window);
  if (d.qkv_bias) more += ", qkv_bias: true";
  if (d.qk_norm) more += ", qk_norm: true";
  if (d.scaled)
    more += text(", rope_scaling: {rope_type: llama3, factor: ", kFactor, ", low_freq_factor: ", kLow, ", high_freq_factor: ", kHigh,
                 ", original_max_position_embeddings: ", kOriginal, "}");
  return model::read_model(ConfigNode::parse(
      text("{arch: ", d.gpt ? "gpt" : "llama", ", hidden: ", d.hidden, ", layers: ", d.layers, ", heads: ", d.heads,
           ", kv_heads: ", d.kv_heads, ", head_dim: ", d.head(), ", ffn: ", d.ffn, ", seq: ", d.seq, ", vocab: ", d.vocab, more, "}"),
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
  if (spec.stacked > 1) {
    const model::ParameterSpec apart = spec.unstacked();
    return shard_of(whole.view(apart.shape), apart, placement).reshape(shard_shape(spec, placement));
  }
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
    const auto options = at::TensorOptions(placement.device);
    const at::Tensor values = at::empty({count}, options.dtype(dtype));
    const at::Tensor grads = at::zeros({count}, options.dtype(at::kFloat));
    std::vector<Parameter> parameters;
    std::int64_t offset = 0;
    for (const auto& p : instance.spec->parameters) {
      const std::string name = instance.parameter_name(p);
      const bool tied = !p.tied_to.empty();
      const at::Tensor initial = shard_of(whole.at(tied ? p.tied_to : name), p, placement);
      at::Tensor value = layout == Layout::flat ? values.narrow(0, offset, initial.numel()).view(initial.sizes())
                                                : at::empty(initial.sizes(), options.dtype(dtype));
      at::Tensor grad = layout == Layout::flat ? grads.narrow(0, offset, initial.numel()).view(initial.sizes())
                                               : at::zeros(initial.sizes(), options.dtype(at::kFloat));
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
  const WithoutAutograd plain;
  std::vector<Saved> saved(blocks_.size());
  std::vector<Tensors> inputs(blocks_.size() + 1);
  Pass first = pass;
  first.training = !recompute;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    first.block = static_cast<int>(b);
    inputs[b + 1] = blocks_[b]->forward(inputs[b], saved[b], first);
  }
  const Step result{inputs.back().at(0).item<double>(), inputs.back().at(1).item<std::int64_t>()};
  Tensors grads;
  Pass second = pass;
  for (std::size_t b = blocks_.size(); b-- > 0;) {
    second.block = static_cast<int>(b);
    if (recompute) blocks_[b]->forward(inputs[b], saved[b], second);
    grads = blocks_[b]->backward_input(grads, saved[b], second);
    blocks_[b]->backward_weight(saved[b], second);
  }
  return result;
}

double Model::evaluate(Pass pass) {
  const WithoutAutograd plain;
  pass.training = pass.drops = false;
  Tensors values;
  for (auto& block : blocks_) {
    Saved saved;
    values = block->forward(values, saved, pass);
  }
  return values.at(0).item<double>();
}

at::Tensor Model::logits(Pass pass, std::vector<KeyValueCache>* caches) {
  const WithoutAutograd plain;
  pass.training = pass.drops = false;
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

using Leaves = std::map<std::string, at::Tensor>;

// What is dropped where, in the model's blocks.
struct Drop {
  double probability;
  Pass pass;
  at::Tensor operator()(const at::Tensor& x, int block, int site) {
    pass.block = block;
    return dropout(x, probability, site, pass);
  }
};

at::Tensor llama_logits(const Dims& d, const Leaves& p, const Batch& batch, Drop drop) {
  const std::int64_t samples = batch.at("tokens").size(0);
  const std::int64_t seq = batch.at("tokens").size(1);
  at::Tensor x = p.at("model.embed_tokens.weight").index_select(0, batch.at("tokens").flatten()).view({samples, seq, d.hidden});
  x = drop(x, 0, 0);
  const at::Tensor hidden = at::full({seq, seq}, -INFINITY, at::kFloat);
  const at::Tensor mask = d.window > 0 ? hidden.triu(1) + hidden.tril(-d.window) : hidden.triu(1);
  for (int l = 0; l < d.layers; ++l) {
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
    const at::Tensor shares = drop(at::softmax(scores, -1), l + 1, 0);
    const at::Tensor mixed = at::matmul(shares, v).transpose(1, 2).reshape({samples, seq, d.heads * d.head()});
    x = x + drop(at::linear(mixed, weight("self_attn.o_proj")), l + 1, 1);
    const at::Tensor n2 = norm(x, weight("post_attention_layernorm"));
    const at::Tensor fed = at::silu(at::linear(n2, weight("mlp.gate_proj"))) * at::linear(n2, weight("mlp.up_proj"));
    x = x + drop(at::linear(fed, weight("mlp.down_proj")), l + 1, 2);
  }
  const at::Tensor head = p.at(d.tied ? "model.embed_tokens.weight" : "lm_head.weight");
  return at::linear(norm(x, p.at("model.norm.weight")), head);
}

at::Tensor gpt_logits(const Dims& d, const Leaves& p, const Batch& batch, Drop drop) {
  const std::int64_t samples = batch.at("tokens").size(0);
  const std::int64_t seq = batch.at("tokens").size(1);
  const auto bias = [&](const std::string& name) { return d.biases ? p.at(name + ".bias") : at::Tensor(); };
  const auto layer_norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {d.hidden}, p.at(name + ".weight"), bias(name));
  };
  const auto map = [&](const at::Tensor& x, const std::string& name) { return at::linear(x, p.at(name + ".weight").t(), bias(name)); };
  const std::string positions = d.positions;
  at::Tensor x = at::embedding(p.at("transformer.wte.weight"), batch.at("tokens"));
  if (positions == "learned") x = x + p.at("transformer.wpe.weight").narrow(0, 0, seq);
  if (d.embedding_norm) x = layer_norm(x, "transformer.ln_e");
  x = drop(x, 0, 0);
  for (int l = 0; l < d.layers; ++l) {
    const std::string prefix = "transformer.h." + std::to_string(l) + ".";
    const at::Tensor n1 = layer_norm(x, prefix + "ln_1");
    const at::Tensor together = map(n1, prefix + "attn.c_attn");
    const at::Tensor qkv = d.heads == d.kv_heads ? together : at::cat({map(n1, prefix + "attn.q_attn"), together}, 2);
    const auto heads = [&](std::int64_t first, std::int64_t count) {
      return qkv.narrow(2, first * d.head(), count * d.head()).view({samples, seq, count, d.head()}).transpose(1, 2);
    };
    const auto turn = [&](const at::Tensor& part) { return positions == "rotary" ? rotate(part, false) : part; };
    const auto repeat = [&](const at::Tensor& part) { return part.repeat_interleave(d.heads / d.kv_heads, 1); };
    const at::Tensor q = turn(heads(0, d.heads));
    const at::Tensor k = repeat(turn(heads(d.heads, d.kv_heads)));
    const at::Tensor v = repeat(heads(d.heads + d.kv_heads, d.kv_heads));
    const at::Tensor mask = at::full({seq, seq}, -INFINITY, at::kFloat).triu(1);
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(d.head())) + mask;
    const at::Tensor shares = drop(at::softmax(scores, -1), l + 1, 0);
    const at::Tensor mixed = at::matmul(shares, v).transpose(1, 2).reshape({samples, seq, d.heads * d.head()});
    x = x + drop(map(mixed, prefix + "attn.c_proj"), l + 1, 1);
    at::Tensor fed = map(layer_norm(x, prefix + "ln_2"), prefix + "mlp.c_fc");
    fed = d.gated ? at::gelu(fed.narrow(2, 0, d.ffn), "tanh") * fed.narrow(2, d.ffn, d.ffn) : at::gelu(fed, "tanh");
    x = x + drop(map(fed, prefix + "mlp.c_proj"), l + 1, 2);
  }
  return at::linear(layer_norm(x, "transformer.ln_f"), p.at(d.tied ? "transformer.wte.weight" : "lm_head.weight"));
}

// What transformers' BertForMaskedLM computes.
at::Tensor bert_logits(const Dims& d, const Leaves& p, const Batch& batch, Drop drop) {
  const std::int64_t samples = batch.at("tokens").size(0);
  const std::int64_t seq = batch.at("tokens").size(1);
  const auto layer_norm = [&](const at::Tensor& x, const std::string& name) {
    return at::layer_norm(x, {d.hidden}, p.at(name + ".weight"), p.at(name + ".bias"), 1e-12);
  };
  const auto map = [&](const at::Tensor& x, const std::string& name) {
    return at::linear(x, p.at(name + ".weight"), p.at(name + ".bias"));
  };
  const std::string embeddings = "bert.embeddings.";
  const at::Tensor words = p.at(embeddings + "word_embeddings.weight");
  const at::Tensor types = d.token_types ? batch.at("token_types") : at::zeros_like(batch.at("tokens"));
  at::Tensor x = at::embedding(words, batch.at("tokens")) + p.at(embeddings + "position_embeddings.weight").narrow(0, 0, seq) +
                 at::embedding(p.at(embeddings + "token_type_embeddings.weight"), types);
  x = drop(layer_norm(x, embeddings + "LayerNorm"), 0, 0);
  for (int l = 0; l < d.layers; ++l) {
    const std::string prefix = "bert.encoder.layer." + std::to_string(l) + ".";
    const auto heads = [&](const char* name) {
      return map(x, prefix + "attention.self." + name).view({samples, seq, d.heads, d.head()}).transpose(1, 2);
    };
    const at::Tensor scores = at::matmul(heads("query"), heads("key").transpose(2, 3)) / std::sqrt(static_cast<double>(d.head()));
    const at::Tensor shares = drop(at::softmax(scores, -1), l + 1, 0);
    const at::Tensor mixed = at::matmul(shares, heads("value")).transpose(1, 2).reshape({samples, seq, d.hidden});
    x = layer_norm(x + drop(map(mixed, prefix + "attention.output.dense"), l + 1, 1), prefix + "attention.output.LayerNorm");
    const at::Tensor fed = map(at::gelu(map(x, prefix + "intermediate.dense")), prefix + "output.dense");
    x = layer_norm(x + drop(fed, l + 1, 2), prefix + "output.LayerNorm");
  }
  const std::string head = "cls.predictions.";
  x = layer_norm(at::gelu(map(x, head + "transform.dense")), head + "transform.LayerNorm");
  return at::linear(x, d.tied ? words : p.at(head + "decoder.weight"), p.at(head + "bias"));
}

}  // namespace

Reference reference(const Dims& d, const std::map<std::string, at::Tensor>& parameters, const Batch& batch, double scale, bool drops) {
  const WithAutograd autograd(true);
  Leaves p;
  for (const auto& [name, value] : parameters) p[name] = value.to(at::kFloat).clone().set_requires_grad(true);
  Drop drop{d.dropout, {}};
  drop.pass.batch = &batch;
  drop.pass.drops = drops;
  const at::Tensor logits = (d.bert ? bert_logits : d.gpt ? gpt_logits : llama_logits)(d, p, batch, drop).flatten(0, 1);
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
  Batch batch{{{"tokens", tokens}, {"targets", targets}}};
  // Two parts of each sample.
  if (d.token_types) batch.tensors["token_types"] = at::arange(d.seq).ge(d.seq / 3).to(at::kLong).repeat({samples, 1});
  return batch;
}

bool cancels(const std::string& name) {
  return name.ends_with("k_proj.bias") || name.ends_with("c_attn.bias") || name.ends_with("query.bias") || name.ends_with("key.bias");
}

double gradient_error(const std::string& name, const at::Tensor& gradient, const at::Tensor& wanted,
                      const std::map<std::string, at::Tensor>& all) {
  const std::size_t key = name.rfind("self.key.bias");
  const at::Tensor& scale = key == std::string::npos ? wanted : all.at(name.substr(0, key) + "self.query.bias");
  return ((gradient - wanted).norm() / scale.norm()).item<double>();
}

double bf16_tolerance() { return kernels::use_cpu_kernels(at::empty({1})) && kernels::has_avx512_bf16() ? 3e-2 : 4e-2; }

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kFloat) - b.to(at::kFloat)).abs().max() / b.to(at::kFloat).abs().max()).item<double>();
}

}  // namespace tessera::nn::test
