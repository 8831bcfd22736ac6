#include "nn/llama_helper.hpp"

#include <ATen/ATen.h>
#include <cmath>

#include "base/random.hpp"

namespace tessera::nn::test {

model::ModelSpec llama(const Dims& d) {
  const std::int64_t head_dim = d.hidden / d.heads;
  const std::map<std::string, double> dims = {{"hidden", static_cast<double>(d.hidden)},
                                              {"layers", static_cast<double>(d.layers)},
                                              {"heads", static_cast<double>(d.heads)},
                                              {"kv_heads", static_cast<double>(d.kv_heads)},
                                              {"head_dim", static_cast<double>(head_dim)},
                                              {"ffn", static_cast<double>(d.ffn)},
                                              {"seq", static_cast<double>(d.seq)},
                                              {"vocab", static_cast<double>(d.vocab)},
                                              {"rope_theta", 10000.0},
                                              {"norm_eps", 1e-5}};
  const auto matrix = [](const std::string& name, std::int64_t out, std::int64_t in, int split) {
    model::ParameterSpec p;
    p.name = name;
    p.shape = {out, in};
    p.split_dim = split;
    return p;
  };
  const auto norm = [&](const std::string& name) {
    model::ParameterSpec p;
    p.name = name;
    p.shape = {d.hidden};
    p.init = {model::Initializer::Kind::ones, 0};
    p.decay = false;
    return p;
  };
  const model::TensorSpec hidden{"hidden", {d.seq, d.hidden}};
  model::BlockSpec embed{"embedding", "embed", dims, {matrix("model.embed_tokens.weight", d.vocab, d.hidden, 0)}, {}, {hidden}};
  const std::string layer = "model.layers.{}.";
  model::BlockSpec body{
      "transformer_layer",
      "layers.{}",
      dims,
      {norm(layer + "input_layernorm.weight"), matrix(layer + "self_attn.q_proj.weight", d.heads * head_dim, d.hidden, 0),
       matrix(layer + "self_attn.k_proj.weight", d.kv_heads * head_dim, d.hidden, 0),
       matrix(layer + "self_attn.v_proj.weight", d.kv_heads * head_dim, d.hidden, 0),
       matrix(layer + "self_attn.o_proj.weight", d.hidden, d.heads * head_dim, 1), norm(layer + "post_attention_layernorm.weight"),
       matrix(layer + "mlp.gate_proj.weight", d.ffn, d.hidden, 0), matrix(layer + "mlp.up_proj.weight", d.ffn, d.hidden, 0),
       matrix(layer + "mlp.down_proj.weight", d.hidden, d.ffn, 1)},
      {hidden},
      {hidden}};
  model::BlockSpec head{"lm_head", "head",        dims, {norm("model.norm.weight"), matrix("lm_head.weight", d.vocab, d.hidden, 0)},
                        {hidden},  {{"loss", {}}}};
  if (d.tied) head.parameters[1].tied_to = "model.embed_tokens.weight";
  model::ModelSpec spec;
  spec.arch = "llama";
  spec.dims = dims;
  spec.tied_embeddings = d.tied;
  spec.repeats = {{embed, 1}, {body, static_cast<int>(d.layers)}, {head, 1}};
  return spec;
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
      wide.init = {model::Initializer::Kind::normal, parameter.init.kind == model::Initializer::Kind::ones ? 0.2 : 0.15};
      initialize(wide, name, seed, {}, value);
      if (parameter.init.kind == model::Initializer::Kind::ones) value.add_(1.0);
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

at::Tensor rotate(const at::Tensor& x) {  // [batch, heads, seq, head_dim]
  const std::int64_t half = x.size(3) / 2;
  const at::Tensor frequency = at::pow(10000.0, -at::arange(0, 2 * half, 2, at::kFloat) / (2 * half));
  const at::Tensor angle = at::outer(at::arange(x.size(2), at::kFloat), frequency).repeat({1, 2});
  const at::Tensor turned = at::cat({-x.narrow(3, half, half), x.narrow(3, 0, half)}, 3);
  return x * angle.cos() + turned * angle.sin();
}

}  // namespace

Reference reference(const Dims& d, const std::map<std::string, at::Tensor>& parameters, const Batch& batch, double scale) {
  std::map<std::string, at::Tensor> p;
  for (const auto& [name, value] : parameters) p[name] = value.to(at::kFloat).clone().set_requires_grad(true);
  const std::int64_t head_dim = d.hidden / d.heads;
  const std::int64_t samples = batch.tokens.size(0);
  const std::int64_t seq = batch.tokens.size(1);
  at::Tensor x = p.at("model.embed_tokens.weight").index_select(0, batch.tokens.flatten()).view({samples, seq, d.hidden});
  const at::Tensor mask = at::full({seq, seq}, -INFINITY, at::kFloat).triu(1);
  for (std::int64_t l = 0; l < d.layers; ++l) {
    const auto weight = [&](const std::string& name) { return p.at("model.layers." + std::to_string(l) + "." + name + ".weight"); };
    const auto heads = [&](const at::Tensor& n, const char* name, std::int64_t count) {
      return at::linear(n, weight(std::string("self_attn.") + name)).view({samples, seq, count, head_dim}).transpose(1, 2);
    };
    const at::Tensor n1 = norm(x, weight("input_layernorm"));
    const at::Tensor q = rotate(heads(n1, "q_proj", d.heads));
    const at::Tensor k = rotate(heads(n1, "k_proj", d.kv_heads)).repeat_interleave(d.heads / d.kv_heads, 1);
    const at::Tensor v = heads(n1, "v_proj", d.kv_heads).repeat_interleave(d.heads / d.kv_heads, 1);
    const at::Tensor scores = at::matmul(q, k.transpose(2, 3)) / std::sqrt(static_cast<double>(head_dim)) + mask;
    const at::Tensor mixed = at::matmul(at::softmax(scores, -1), v).transpose(1, 2).reshape({samples, seq, d.hidden});
    x = x + at::linear(mixed, weight("self_attn.o_proj"));
    const at::Tensor n2 = norm(x, weight("post_attention_layernorm"));
    x = x + at::linear(at::silu(at::linear(n2, weight("mlp.gate_proj"))) * at::linear(n2, weight("mlp.up_proj")), weight("mlp.down_proj"));
  }
  const at::Tensor head = p.count("lm_head.weight") != 0 ? p.at("lm_head.weight") : p.at("model.embed_tokens.weight");
  const at::Tensor logits = at::linear(norm(x, p.at("model.norm.weight")), head).flatten(0, 1);
  const at::Tensor loss = at::cross_entropy_loss(logits, batch.targets.flatten(), {}, at::Reduction::Sum, -1);
  (loss * scale).backward();
  Reference result;
  result.loss = loss.item<double>();
  for (const auto& [name, value] : p) result.grads[name] = value.grad();
  return result;
}

Batch random_batch(const Dims& d, std::int64_t samples, std::uint64_t seed) {
  Random random(seed);
  Batch batch{at::empty({samples, d.seq}, at::kLong), at::empty({samples, d.seq}, at::kLong)};
  for (std::int64_t i = 0; i < samples * d.seq; ++i) {
    batch.tokens.data_ptr<std::int64_t>()[i] = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(d.vocab)));
    const bool counted = random.below(10) != 0;
    batch.targets.data_ptr<std::int64_t>()[i] = counted ? static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(d.vocab))) : -1;
  }
  return batch;
}

double relative_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a.to(at::kFloat) - b.to(at::kFloat)).abs().max() / b.to(at::kFloat).abs().max()).item<double>();
}

}  // namespace tessera::nn::test
