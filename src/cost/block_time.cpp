// A block, operator by operator.
#include <algorithm>
#include <cmath>
#include <string_view>

#include "cost/block_time.hpp"

namespace tessera::cost {
namespace {

using model::Exchange;
using model::Operator;
using profile::Format;

bool starts(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// Parts of attention that are kernels of their own when it is not fused.
bool is_core(std::string_view name) { return starts(name, "scores") || starts(name, "values") || starts(name, "softmax"); }
bool of_experts(std::string_view name) { return starts(name, "experts_"); }
// Products that stay in 16 bits when the others have fewer.
bool stays_wide(std::string_view name) { return is_core(name) || starts(name, "router") || starts(name, "logits"); }

class BlockClock {
 public:
  BlockClock(const model::BlockShard& shard, const Stack& stack, const profile::Kernels& kernels, const profile::Exchanges& exchanges)
      : shard_(shard),
        stack_(stack),
        kernels_(kernels),
        exchanges_(exchanges),
        calibration_(kernels.calibration()),
        loose_(stack.compiled ? 1.0 : calibration_.unfused),
        exposed_(stack.hides_tensor ? calibration_.tensor_exposed : calibration_.tensor_exposed_plain) {}

  LayerTime time(const model::BlockSpec& block) const {
    const model::BlockCost cost = model::cost_of(block, shard_);
    LayerTime out;
    for (const Operator& step : cost.forward_operators) {
      add(step, false, out.forward);
      cast(step, out.forward, out.backward);
    }
    for (const Operator& step : cost.backward_operators) {
      if (step.weight_half && stack_.frozen) continue;
      const double before = out.backward.total();
      add(step, true, out.backward);
      if (step.weight_half) out.weight_half += out.backward.total() - before;
    }
    const auto copies = block.dims.find("experts_per_token");
    const int chosen = copies == block.dims.end() ? 1 : static_cast<int>(copies->second);
    exchange(cost.forward_exchanges, chosen, out.forward);
    exchange(cost.backward_exchanges, chosen, out.backward);
    if (block.kind == "moe_layer") {
      out.forward.host += calibration_.router_host;
      out.backward.host += calibration_.router_host;
    }
    switch (shard_.recompute) {
      case model::Recompute::none: break;
      case model::Recompute::selective:
        if (stack_.selective_is_half) {
          out.again = out.forward * 0.5;
          out.again.attention = 0;
          out.again.context_exchange = 0;
        } else {
          for (const Operator& step : cost.recomputed_operators) add(step, false, out.again);
        }
        break;
      case model::Recompute::full: out.again = out.forward; break;
    }
    return out;
  }

 private:
  void add(const Operator& step, bool backward, PassTime& pass) const {
    const auto bytes = static_cast<double>(step.traffic.value);
    switch (step.kind) {
      case Operator::Kind::attention: pass.attention += attention(step, backward); break;
      case Operator::Kind::matmul:
      case Operator::Kind::convolution: (is_core(step.name) ? pass.attention : pass.products) += product(step); break;
      case Operator::Kind::lookup:
      case Operator::Kind::elementwise:
        if (is_core(step.name)) {
          pass.attention += kernels_.move(bytes);
        } else {
          pass.elementwise += kernels_.move(bytes * loose_);
        }
    }
  }

  double product(const Operator& step) const {
    const Format format = stays_wide(step.name) ? Format::bf16 : kernels_.format();
    const bool grouped = of_experts(step.name);
    // Tokens (or pixels) times weights: tokens are rows in memory, and how many rows there are aligns nothing.
    const bool rows = !is_core(step.name);
    const auto free = [](std::int64_t extent) {
      return static_cast<double>((extent + profile::kAlignment - 1) / profile::kAlignment * profile::kAlignment);
    };
    const double m = rows && !step.weight_half ? free(step.m) : static_cast<double>(step.m);
    const double k = rows && step.weight_half ? free(step.k) : static_cast<double>(step.k);
    const double time = kernels_.product(static_cast<double>(step.batch), m, static_cast<double>(step.n), k,
                                         static_cast<double>(step.traffic.value), format, grouped);
    if (!grouped) return time;
    // The narrower side of the experts' weights.
    const double width = static_cast<double>(step.weight_half ? std::min(step.m, step.n) : std::min(step.n, step.k));
    return time * (width + calibration_.grouped_half) / width;
  }

  double attention(const Operator& step, bool backward) const {
    // Of the backward pass: sums into the queries' gradients that several workers add to.
    constexpr double kBackwardLoss = 1.15;
    const double computing = kernels_.attention(step.flops.value, static_cast<double>(step.n), static_cast<double>(step.k));
    const double ring = shard_.context_parallel > 1 ? calibration_.ring_share : 1;
    return computing / ring * (backward ? kBackwardLoss : 1) + (backward ? 3 : 1) * kernels_.launch();
  }

  // Operands in few bits are written again with their scales: the input forward, the output's gradient backward.
  void cast(const Operator& step, PassTime& forward, PassTime& backward) const {
    if (kernels_.format() == Format::bf16 || step.kind != Operator::Kind::matmul || stays_wide(step.name)) return;
    const double traffic = calibration_.cast * (stack_.row_scales ? calibration_.row_scales : 1) * static_cast<double>(step.batch * step.m);
    forward.elementwise += kernels_.move(3 * static_cast<double>(step.k) * traffic);
    backward.elementwise += kernels_.move(4 * static_cast<double>(step.n) * traffic);
  }

  // `chosen`: experts of each token.
  void exchange(const std::vector<Exchange>& exchanges, int chosen, PassTime& pass) const {
    double ring = 0;
    double tensor_hidden = 0;
    double expert_hidden = 0;
    for (const Exchange& one : exchanges) {
      const auto bytes = static_cast<double>(one.bytes.value);
      switch (one.axis) {
        case Exchange::Axis::tensor: {
          const double seconds = tensor(one);
          const double exposed = seconds * exposed_ * (one.overlaps ? calibration_.tensor_beside : 1);
          pass.tensor_exchange += exposed;
          tensor_hidden += std::max(0.0, seconds - exposed);
          break;
        }
        case Exchange::Axis::expert: {
          const double seconds =
              exchanges_.all_to_all(bytes, chosen, {shard_.expert_parallel, shard_.whole_experts ? 1 : shard_.tensor_parallel});
          pass.expert_exchange += seconds * calibration_.expert_exposed;
          expert_hidden += std::max(0.0, seconds * (1 - calibration_.expert_exposed));
          break;
        }
        case Exchange::Axis::context:
          if (one.operation == "all_to_all")
            pass.context_exchange += exchanges_.all_to_all(bytes, 1, {shard_.context_parallel, shard_.tensor_parallel});
          else
            ring += exchanges_.ring_step(bytes, {shard_.context_parallel, shard_.tensor_parallel});
          break;
      }
    }
    // The ring's messages run beside attention; what is longer is waited for.
    const double ring_hidden = std::min(ring, pass.attention);
    pass.context_exchange += ring - ring_hidden;
    // However small the shares that a calibration exposes: the block's computing hides no more than it takes.
    const double computing = pass.products + pass.attention + pass.elementwise;
    const double hidden = tensor_hidden + expert_hidden + ring_hidden;
    pass.hidden = std::min(hidden, computing);
    if (hidden <= computing) return;
    const double exposed = 1 - computing / hidden;
    pass.tensor_exchange += tensor_hidden * exposed;
    pass.expert_exchange += expert_hidden * exposed;
    pass.context_exchange += ring_hidden * exposed;
  }

  double tensor(const Exchange& one) const {
    const profile::Collective operation = one.operation == "all_reduce"   ? profile::Collective::all_reduce
                                          : one.operation == "all_gather" ? profile::Collective::all_gather
                                                                          : profile::Collective::reduce_scatter;
    return exchanges_.collective(operation, static_cast<double>(one.bytes.value), {shard_.tensor_parallel, 1});
  }

  const model::BlockShard& shard_;
  const Stack& stack_;
  const profile::Kernels& kernels_;
  const profile::Exchanges& exchanges_;
  const profile::Calibration& calibration_;
  const double loose_;    // factor on the traffic of elementwise work
  const double exposed_;  // share of tensor-parallel exchanges
};

}  // namespace

PassTime& PassTime::operator+=(const PassTime& other) {
  products += other.products;
  attention += other.attention;
  elementwise += other.elementwise;
  tensor_exchange += other.tensor_exchange;
  context_exchange += other.context_exchange;
  expert_exchange += other.expert_exchange;
  host += other.host;
  hidden += other.hidden;
  return *this;
}

PassTime PassTime::operator*(double factor) const {
  return {products * factor,         attention * factor,       elementwise * factor, tensor_exchange * factor,
          context_exchange * factor, expert_exchange * factor, host * factor,        hidden * factor};
}

model::BlockShard shard_of(const plan::Strategy& strategy, std::int64_t micro_batch, model::Precision precision) {
  model::BlockShard shard;
  shard.micro_batch_size = micro_batch;
  shard.tensor_parallel = strategy.tp;
  shard.precision = precision;
  shard.recompute = strategy.recompute;
  shard.sequence_parallel = strategy.sequence_parallel && strategy.tp > 1;
  shard.context_parallel = strategy.cp;
  shard.context = strategy.context;
  shard.expert_parallel = strategy.ep;
  shard.whole_experts = strategy.whole_experts;
  return shard;
}

LayerTime block_time(const model::BlockShard& shard, const Stack& stack, const profile::Kernels& kernels,
                     const profile::Exchanges& exchanges, const model::BlockSpec& block) {
  return BlockClock(shard, stack, kernels, exchanges).time(block);
}

}  // namespace tessera::cost
