// A language model in the shape of an hourglass: each layer on the way down passes a narrow copy of what it has made to its counterpart on
// the way up. Only forward passes are written here; Tessera makes the gradients, measures what each block takes, and cuts the model.
#include <ATen/ATen.h>
#include <tessera/plugin.hpp>

namespace {

using tessera::model::BlockSpec;
using tessera::model::ModelSpec;
using tessera::model::ParameterSpec;
using tessera::model::Settings;
using tessera::model::TensorSpec;
using tessera::nn::Pass;
using tessera::nn::Tensors;

// ---- The forward passes: tensors are [samples, seq, ...]; parameters come in the order in which the block's spec lists them.

Tensors embed(const BlockSpec&, const Tensors&, const Tensors& parameters, const Pass& pass) {
  return {at::embedding(parameters.at(0), pass.batch->at("tokens"))};
}

// Attention and a feed-forward network. Parameters: qkv, out, up, down.
at::Tensor layer(const BlockSpec& block, const at::Tensor& x, const Tensors& parameters) {
  const std::int64_t samples = x.size(0), seq = x.size(1), hidden = x.size(2), heads = block.dim("heads");
  const auto norm = [&](const at::Tensor& values) { return at::layer_norm(values, {hidden}); };
  const Tensors qkv = at::linear(norm(x), parameters.at(0)).view({samples, seq, 3 * heads, hidden / heads}).transpose(1, 2).chunk(3, 1);
  const at::Tensor attended = at::scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], {}, 0.0, /*is_causal=*/true);
  const at::Tensor middle = x + at::linear(attended.transpose(1, 2).reshape({samples, seq, hidden}), parameters.at(1));
  return middle + at::linear(at::silu(at::linear(norm(middle), parameters.at(2))), parameters.at(3));
}

// Its fifth parameter makes what is passed on to the counterpart.
Tensors down(const BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass&) {
  const at::Tensor out = layer(block, inputs.at(0), parameters);
  return {out, at::linear(out, parameters.at(4))};
}

// Its fifth parameter takes it up again.
Tensors up(const BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass&) {
  return {layer(block, inputs.at(0) + at::linear(inputs.at(1), parameters.at(4)), parameters)};
}

// The last block returns the sum of the losses and how many they are; targets of -1 do not count.
Tensors head(const BlockSpec&, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor x = inputs.at(0);
  const at::Tensor logits = at::linear(at::layer_norm(x, {x.size(2)}), parameters.at(0)).to(at::kFloat);
  const at::Tensor targets = pass.batch->find("targets");
  if (!targets.defined()) return {logits};  // while it generates text
  const at::Tensor loss = at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten(), {}, at::Reduction::Sum, -1);
  return {loss, (targets >= 0).sum()};
}

// ---- The model as a list of blocks. A block finds its inputs by their names among what earlier blocks have made.

ModelSpec read_hourglass(const Settings& settings) {
  settings.allow_only({"hidden", "layers", "heads", "seq", "vocab"});
  const std::int64_t hidden = settings.count("hidden"), layers = settings.count("layers"), heads = settings.count("heads", 4);
  const std::int64_t seq = settings.count("seq"), vocab = settings.count("vocab");
  settings.require_divides("heads", heads, "hidden", hidden);
  if (layers % 2 != 0) throw settings.at("layers").error(tessera::text("found ", layers), "an even number: as many up as down");

  ModelSpec model;
  model.arch = "hourglass";
  for (const auto& [key, value] : {std::pair("hidden", hidden), {"layers", layers}, {"seq", seq}, {"vocab", vocab}})
    model.dims[key] = static_cast<double>(value);
  const std::int64_t narrow = hidden / 4;
  const TensorSpec passed{"hidden", {seq, hidden}};
  const auto add = [&](const std::string& kind, const std::string& name, std::vector<ParameterSpec> parameters,
                       std::vector<TensorSpec> inputs, std::vector<TensorSpec> outputs) {
    BlockSpec block{kind, name, {{"heads", static_cast<double>(heads)}}, std::move(parameters), std::move(inputs), std::move(outputs)};
    model.repeats.push_back({std::move(block), 1});
  };
  const auto weights = [&](const std::string& name, std::vector<std::int64_t> fifth) {
    return std::vector<ParameterSpec>{{name + ".qkv", {3 * hidden, hidden}},
                                      {name + ".out", {hidden, hidden}},
                                      {name + ".up", {4 * hidden, hidden}},
                                      {name + ".down", {hidden, 4 * hidden}},
                                      {name + ".skip", std::move(fifth)}};
  };
  add("hourglass_embedding", "embed", {{"embed.weight", {vocab, hidden}}}, {}, {passed});
  for (std::int64_t i = 0; i < layers / 2; ++i) {
    const std::string name = tessera::text("down.", i);
    add("hourglass_down", name, weights(name, {narrow, hidden}), {passed}, {passed, {tessera::text("skip.", i), {seq, narrow}}});
  }
  for (std::int64_t i = layers / 2; i-- > 0;) {
    const std::string name = tessera::text("up.", i);
    add("hourglass_up", name, weights(name, {hidden, narrow}), {passed, {tessera::text("skip.", i), {seq, narrow}}}, {passed});
  }
  add("hourglass_head", "head", {{"head.weight", {vocab, hidden}}}, {passed}, {{"loss", {}}});
  return model;
}

}  // namespace

TESSERA_PLUGIN() {
  tessera::model::register_arch("hourglass", read_hourglass);
  tessera::nn::register_forward("hourglass_embedding", embed);
  tessera::nn::register_forward("hourglass_down", down);
  tessera::nn::register_forward("hourglass_up", up);
  tessera::nn::register_forward("hourglass_head", head);
}
