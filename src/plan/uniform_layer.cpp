// A transformer layer, kernel by kernel.
#include <algorithm>
#include <cmath>

#include "plan/uniform_parts.hpp"

namespace tessera::plan {
namespace {

using profile::Collective;
using profile::Format;

constexpr double kHalf = 2;  // bytes of a 16-bit element

class Layer {
 public:
  explicit Layer(const Pricing& pricing)
      : p_(pricing), plan_(pricing.plan), model_(pricing.model), kernels_(pricing.kernels), calibration_(pricing.kernels.calibration()) {
    tokens_ = pricing.tokens();
    whole_ = kHalf * tokens_ * static_cast<double>(model_.hidden);
    cut_ = plan_.sequence_parallel && plan_.tp > 1 ? whole_ / plan_.tp : whole_;
    loose_ = plan_.compiled ? 1.0 : calibration_.unfused;
  }

  LayerTime time(bool experts) {
    if (model_.latent.key_value_rank > 0) {
      latent_attention();
    } else {
      attention();
    }
    norms();
    if (experts) {
      routed();
    } else {
      feed_forward(static_cast<double>(model_.ffn) / plan_.tp);
    }
    if (plan_.tp > 1) tensor_exchanges();
    out_.again = again();
    return out_;
  }

 private:
  // Forward: [tokens, k] x [k, n]; backward: the same work for the input and for the weight.
  void product(double n, double k, Format format) { product(tokens_, n, k, format); }
  void product(double m, double n, double k, Format format) {
    n = std::floor(n);
    k = std::floor(k);
    out_.forward.products += kernels_.product(1, m, n, k, format);
    out_.backward.products += kernels_.product(1, m, k, n, format);
    if (!plan_.frozen) out_.backward.products += kernels_.product(1, k, n, m, format, Pricing::kAccumulated);
    cast(m, n, k, format);
  }

  // Operands in few bits are written again with their scales.
  void cast(double m, double n, double k, Format format) {
    if (format == Format::bf16) return;
    const double traffic = calibration_.cast * (plan_.row_scales ? calibration_.row_scales : 1);
    out_.forward.elementwise += kernels_.move(3 * m * k * traffic);
    out_.backward.elementwise += kernels_.move(4 * m * n * traffic);
  }

  void elementwise(double forward, double backward) {
    out_.forward.elementwise += kernels_.move(forward);
    out_.backward.elementwise += kernels_.move(backward);
  }

  void attention() {
    const double heads = static_cast<double>(model_.heads) / plan_.tp;
    const double kv_heads = std::max(1.0, static_cast<double>(model_.kv_heads) / plan_.tp);
    const double dim = static_cast<double>(model_.head_dim);
    const double hidden = static_cast<double>(model_.hidden);
    product((heads + 2 * kv_heads) * dim, hidden, plan_.format);
    product(hidden, heads * dim, plan_.format);
    core(heads, kv_heads * dim, dim, dim);
    if (model_.rotary) {
      const double turned = kHalf * tokens_ * (heads + kv_heads) * dim * 2;
      elementwise(turned, turned);
    }
  }

  void latent_attention() {
    const Latent& latent = model_.latent;
    const double heads = static_cast<double>(model_.heads) / plan_.tp;
    const double hidden = static_cast<double>(model_.hidden);
    const auto query_rank = static_cast<double>(latent.query_rank);
    const auto rank = static_cast<double>(latent.key_value_rank);
    const auto rotary = static_cast<double>(latent.rotary);
    const auto plain = static_cast<double>(latent.plain);
    const auto value = static_cast<double>(latent.value);
    product(query_rank, hidden, plan_.format);
    product(heads * (plain + rotary), query_rank, plan_.format);
    product(rank + rotary, hidden, plan_.format);
    product(heads * (plain + value), rank, plan_.format);
    product(hidden, heads * value, plan_.format);
    core(heads, heads * (plain + rotary + value) / 2, plain + rotary, value);
    const double latents = kHalf * tokens_ * (query_rank + rank);
    const double wide = kHalf * tokens_ * heads * (plain + rotary + value);
    elementwise(4 * latents + 3 * wide, 6 * latents + 4 * wide);
  }

  // Scores, softmax and their product with the values. `key_width`: elements of the keys of one token.
  void core(double heads, double key_width, double query_dim, double value_dim) {
    const auto keys = static_cast<double>(model_.seq);
    const double queries = keys / plan_.cp;
    const double batch = static_cast<double>(plan_.micro_batch);
    if (calibration_.attention == profile::AttentionKernel::unfused) {
      unfused(batch * heads, queries, keys, query_dim, value_dim);
      return;
    }
    constexpr double kCausal = 0.5;
    constexpr double kBackwardWork = 2.5;   // five products for two
    constexpr double kBackwardLoss = 1.15;  // and their atomics
    const double flops = 2 * batch * heads * queries * keys * (query_dim + value_dim) * kCausal;
    double forward = kernels_.attention(flops, keys, (query_dim + value_dim) / 2) + kernels_.launch();
    double backward = kBackwardWork * kBackwardLoss * forward;
    if (plan_.cp > 1) {
      // Keys and values go round; what computing does not hide is waited for.
      forward /= calibration_.ring_share;
      backward /= calibration_.ring_share;
      const double passed = 2 * kHalf * batch * queries * key_width;
      const double ring = (plan_.cp - 1) * p_.exchanges.message(passed, plan_.tp);
      out_.forward.context_exchange += std::max(0.0, ring - forward);
      out_.backward.context_exchange += std::max(0.0, 2 * ring - backward);
    }
    out_.forward.attention += forward;
    out_.backward.attention += backward + 3 * kernels_.launch();
  }

  void unfused(double batch, double queries, double keys, double query_dim, double value_dim) {
    const double scores = batch * queries * keys;
    const Format format = Format::bf16;
    const double masked = calibration_.dropout ? 5 * scores : 0;  // read, written, and a byte of mask
    out_.forward.attention += kernels_.product(batch, queries, keys, query_dim, format) + kernels_.product(batch, queries, value_dim, keys, format) +
                              kernels_.move(4 * scores + masked) + (calibration_.dropout ? kernels_.launch() : 0);
    out_.backward.attention += kernels_.product(batch, queries, keys, value_dim, format) + kernels_.product(batch, keys, value_dim, queries, format) +
                               kernels_.product(batch, queries, query_dim, keys, format) + kernels_.product(batch, keys, query_dim, queries, format) +
                               kernels_.move(6 * scores + masked) + kernels_.launch();
  }

  // Two norms, two residual sums, dropout before each.
  void norms() {
    const double forward = 10 + (calibration_.dropout ? 1 : 0);
    const double backward = 10 + (calibration_.dropout ? 3 : 0);
    elementwise(cut_ * forward * loose_, cut_ * backward * loose_);
    out_.forward.elementwise += 3 * kernels_.launch();
    out_.backward.elementwise += 3 * kernels_.launch();
  }

  void feed_forward(double width) {
    const double hidden = static_cast<double>(model_.hidden);
    product((model_.gated ? 2 : 1) * width, hidden, plan_.format);
    product(hidden, width, plan_.format);
    activation(tokens_ * width, loose_);
  }

  void activation(double elements, double loose) {
    const double bytes = kHalf * elements * loose;
    elementwise(bytes * (model_.gated ? 3 : 2), bytes * (model_.gated ? 5 : 3));
  }

  void routed() {
    const Experts& experts = model_.experts;
    const double hidden = static_cast<double>(model_.hidden);
    const auto width = static_cast<double>(experts.ffn);
    const double items = tokens_ * experts.chosen;
    const double local = std::max<double>(1, static_cast<double>(experts.count) / plan_.ep);
    // Tokens of one expert, padded to what the kernels take.
    constexpr double kPadding = 32;
    const double each = std::max(16.0, std::nearbyint(items / local / kPadding) * kPadding);
    const std::pair<double, double> products[] = {{(model_.gated ? 2 : 1) * width, hidden}, {hidden, width}};
    for (const auto& [n, k] : products) {
      out_.forward.products += kernels_.product(local, each, n, k, plan_.format) / calibration_.grouped;
      out_.backward.products +=
          (kernels_.product(local, each, k, n, plan_.format) + kernels_.product(local, n, k, each, plan_.format, Pricing::kAccumulated)) / calibration_.grouped;
      if (plan_.format != Format::bf16) elementwise(3 * items * k, 4 * items * n);
    }
    activation(items * width, 1);
    const double routed_bytes = kHalf * items * hidden;
    elementwise(4 * routed_bytes + kHalf * tokens_ * hidden, 5 * routed_bytes);  // into the experts' order and back
    product(static_cast<double>(experts.count), hidden, Format::bf16);
    if (experts.shared_ffn > 0) feed_forward(static_cast<double>(experts.shared_ffn) / plan_.tp);
    out_.forward.host += calibration_.router_host;
    out_.backward.host += calibration_.router_host;
    const double exchange = 2 * p_.exchanges.all_to_all(routed_bytes, experts.chosen, {plan_.ep, 1}) * calibration_.expert_exposed;
    out_.forward.expert_exchange += exchange;
    out_.backward.expert_exchange += exchange;
  }

  // Two pairs of an all-gather and a reduce-scatter with sequence parallelism, two all-reduces without.
  void tensor_exchanges() {
    const profile::Team team{plan_.tp, 1};
    const double once = plan_.sequence_parallel ? p_.exchanges.collective(Collective::all_gather, whole_, team) +
                                                      p_.exchanges.collective(Collective::reduce_scatter, whole_, team)
                                                : p_.exchanges.collective(Collective::all_reduce, whole_, team);
    const double exposed = plan_.hide_tensor ? calibration_.tensor_exposed : calibration_.tensor_exposed_plain;
    out_.forward.tensor_exchange += 2 * once * exposed;
    out_.backward.tensor_exchange += 2 * once * exposed;
  }

  PassTime again() const {
    PassTime out;
    switch (plan_.again) {
      case Again::nothing: break;
      case Again::attention: out.attention = out_.forward.attention; break;
      case Again::half:
        out = out_.forward * 0.5;
        out.attention = 0;
        out.context_exchange = 0;
        break;
      case Again::layer: out = out_.forward; break;
    }
    return out;
  }

  const Pricing& p_;
  const UniformPlan& plan_;
  const Transformer& model_;
  const profile::Kernels& kernels_;
  const profile::Calibration& calibration_;
  double tokens_ = 0;  // of a micro-batch on a rank
  double whole_ = 0;   // bytes of its hidden states
  double cut_ = 0;     // of those that a rank works on elementwise
  double loose_ = 1;
  LayerTime out_;
};

}  // namespace

LayerTime layer_time(const Pricing& pricing, bool experts) { return Layer(pricing).time(experts); }

LayerTime layer_time(const UniformPlan& plan, const Transformer& model, const cluster::ResourceGroup& group, const profile::Calibration& calibration,
                     bool experts) {
  return layer_time(Pricing(plan, model, group, calibration), experts);
}

}  // namespace tessera::plan
