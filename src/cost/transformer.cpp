#include "cost/transformer.hpp"

#include "base/error.hpp"

namespace tessera::cost {
namespace {

double real(std::int64_t value) { return static_cast<double>(value); }

}  // namespace

double Transformer::attention_parameters() const {
  const double h = real(hidden);
  if (latent.key_value_rank > 0) {
    const double down = h * real(latent.query_rank + latent.key_value_rank + latent.rotary);
    const double up = real(heads) * (real(latent.query_rank) * real(latent.plain + latent.rotary) +
                                     real(latent.key_value_rank) * real(latent.plain + latent.value));
    return down + up + real(heads) * real(latent.value) * h;
  }
  return h * real(head_dim) * real(2 * heads + 2 * kv_heads);
}

double Transformer::dense_parameters() const { return (gated ? 3 : 2) * real(hidden) * real(ffn); }
double Transformer::expert_parameters() const { return (gated ? 3 : 2) * real(hidden) * real(experts.ffn); }
double Transformer::routing_parameters() const {
  return real(hidden) * real(experts.count) + (gated ? 3 : 2) * real(hidden) * real(experts.shared_ffn);
}

double Transformer::parameters() const {
  const int plain = experts.count > 0 ? experts.dense_layers : layers;
  const double sparse = routing_parameters() + real(experts.count) * expert_parameters();
  return layers * attention_parameters() + plain * dense_parameters() + (layers - plain) * sparse + embedding_parameters() * (tied ? 1 : 2);
}

Transformer transformer_of(const model::ModelSpec& model) {
  const auto number = [&](const char* key, std::int64_t fallback) {
    const auto found = model.dims.find(key);
    return found == model.dims.end() ? fallback : static_cast<std::int64_t>(found->second);
  };
  for (const char* key : {"layers", "hidden", "heads", "ffn", "vocab", "seq"})
    if (!model.dims.contains(key))
      throw Error(ErrorCode::invalid_config,
                  text("a model of the kind ", model.arch, " is not made of equal transformer layers: it has no ", key), {},
                  "a decoder with layers, hidden, heads, ffn, vocab and seq");
  Transformer out;
  out.layers = static_cast<int>(model.dim("layers"));
  out.hidden = model.dim("hidden");
  out.heads = model.dim("heads");
  out.kv_heads = number("kv_heads", out.heads);
  out.head_dim = number("head_dim", out.hidden / out.heads);
  out.ffn = model.dim("ffn");
  out.vocab = model.dim("vocab");
  out.seq = model.dim("seq");
  out.tied = model.tied_embeddings;
  out.gated = number("gated", 1) != 0;
  out.rotary = number("rotary", 1) != 0;
  out.experts = {number("experts", 0), static_cast<int>(number("experts_per_token", 0)), number("expert_ffn", 0), number("shared_ffn", 0),
                 static_cast<int>(number("dense_layers", 0))};
  out.latent = {number("q_lora", 0), number("kv_lora", 0), number("rope_dim", 0), number("nope_dim", 0), number("v_dim", 0)};
  return out;
}

}  // namespace tessera::cost
