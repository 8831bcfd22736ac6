// A block, operator by operator.
#include <algorithm>
#include <string_view>

#include "cost/block_time.hpp"

namespace tessera::cost {
namespace {

using model::Exchange;
using model::Operator;
using profile::Format;

constexpr double Spent::*kSpent[] = {&Spent::products,         &Spent::attention,       &Spent::elementwise,      &Spent::tensor_exchange,
                                     &Spent::context_exchange, &Spent::expert_exchange, &Spent::replica_exchange, &Spent::host};

bool starts(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// Parts of attention that are kernels of their own when it is not fused.
bool is_core(std::string_view name) { return starts(name, "scores") || starts(name, "values") || starts(name, "softmax"); }
bool of_experts(std::string_view name) { return starts(name, "experts_"); }
// Products that stay in 16 bits when the others have fewer.
bool stays_wide(std::string_view name) { return is_core(name) || starts(name, "router") || starts(name, "logits"); }

program::BesideRules rules_of(const Stack& stack, const profile::Overlaps& overlaps) {
  // Into how many pieces software cuts a product and the exchange next to it: the splits of Transformer Engine's pipelined overlap.
  constexpr int kPieces = 4;
  program::BesideRules rules;
  rules.pieces = overlaps.products && stack.hides_tensor ? kPieces : 1;
  rules.weight_gradients = overlaps.weight_gradients && stack.hides_tensor;
  rules.shared_experts = overlaps.shared_experts;
  rules.second_micro_batch = overlaps.all_to_alls;
  return rules;
}

class BlockClock {
 public:
  BlockClock(const model::BlockShard& shard, const Stack& stack, const profile::Kernels& kernels, const profile::Exchanges& exchanges)
      : shard_(shard),
        stack_(stack),
        kernels_(kernels),
        exchanges_(exchanges),
        calibration_(kernels.calibration()),
        loose_(stack.compiled ? 1.0 : calibration_.unfused),
        rules_(rules_of(stack, calibration_.overlaps)) {}

  LayerTime time(const model::BlockSpec& block) const {
    const model::BlockCost cost = model::cost_of(block, shard_);
    const auto copies = block.dims.find("experts_per_token");
    const int chosen = copies == block.dims.end() ? 1 : static_cast<int>(copies->second);
    LayerTime out;
    out.forward = pass(cost.forward_operators, cost.forward_exchanges, false, chosen);
    out.backward = pass(cost.backward_operators, cost.backward_exchanges, true, chosen);
    for (const Operator& step : cost.forward_operators) cast(step, out.forward, out.backward);
    for (const Operator& step : cost.backward_operators)
      if (step.weight_half && !stack_.frozen) out.weight_half += seconds(step, true);
    if (block.kind == "moe_layer") {
      out.forward.spent.host += calibration_.router_host;
      out.backward.spent.host += calibration_.router_host;
    }
    switch (shard_.recompute) {
      case model::Recompute::none: break;
      case model::Recompute::selective:
        if (stack_.selective_is_half) {
          out.again = out.forward * 0.5;
          out.again.spent.attention = out.again.spent.context_exchange = 0;
        } else {
          out.again = pass(cost.recomputed_operators, cost.recomputed_exchanges, false, chosen);
        }
        break;
      case model::Recompute::full: out.again = out.forward; break;
    }
    return out;
  }

 private:
  double seconds(const Operator& step, bool backward) const {
    const auto bytes = static_cast<double>(step.traffic.value);
    switch (step.kind) {
      case Operator::Kind::attention: return attention(step, backward);
      case Operator::Kind::matmul:
      case Operator::Kind::convolution: return product(step);
      case Operator::Kind::lookup:
      case Operator::Kind::elementwise: return kernels_.move(is_core(step.name) ? bytes : bytes * loose_);
    }
    return 0;
  }

  static double& spent_on(const Operator& step, Spent& pass) {
    if (step.kind == Operator::Kind::attention || is_core(step.name)) return pass.attention;
    return step.kind == Operator::Kind::matmul || step.kind == Operator::Kind::convolution ? pass.products : pass.elementwise;
  }

  PassTime pass(const std::vector<Operator>& operators, const std::vector<Exchange>& exchanges, bool backward, int chosen) const {
    PassTime out;
    std::vector<double> computing;
    computing.reserve(operators.size());
    for (const Operator& step : operators) {
      computing.push_back(stack_.frozen && step.weight_half ? 0 : seconds(step, backward));
      spent_on(step, out.spent) += computing.back();
    }
    if (exchanges.empty()) return out;
    const program::BlockPass block = program::block_pass(operators, exchanges, rules_);
    std::vector<TimedExchange> times;
    times.reserve(block.exchanges.size());
    for (const program::ExchangeStep& step : block.exchanges)
      times.push_back(timed(exchanges[step.exchange], static_cast<double>(step.bytes.value), chosen));
    const PlayedPass played = play(block, computing, times, calibration_.overlap_slowdown);
    out.spent.tensor_exchange = played.exposed[static_cast<std::size_t>(Exchange::Axis::tensor)];
    out.spent.context_exchange = played.exposed[static_cast<std::size_t>(Exchange::Axis::context)];
    out.spent.expert_exchange = played.exposed[static_cast<std::size_t>(Exchange::Axis::expert)];
    out.spent.replica_exchange = played.exposed[static_cast<std::size_t>(Exchange::Axis::replica)];
    out.busy = played.busy;
    return out;
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
    return computing * (backward ? kBackwardLoss : 1) + (backward ? 3 : 1) * kernels_.launch();
  }

  // Operands in few bits are written again with their scales: the input forward, the output's gradient backward.
  void cast(const Operator& step, PassTime& forward, PassTime& backward) const {
    if (kernels_.format() == Format::bf16 || step.kind != Operator::Kind::matmul || stays_wide(step.name)) return;
    const double traffic = calibration_.cast * (stack_.row_scales ? calibration_.row_scales : 1) * static_cast<double>(step.batch * step.m);
    forward.spent.elementwise += kernels_.move(3 * static_cast<double>(step.k) * traffic);
    backward.spent.elementwise += kernels_.move(4 * static_cast<double>(step.n) * traffic);
  }

  // `chosen`: experts of each token.
  TimedExchange timed(const Exchange& one, double bytes, int chosen) const {
    const profile::ProcessGroup team = team_of(one.axis, shard_);
    const double seconds = one.axis == Exchange::Axis::expert    ? exchanges_.all_to_all(bytes, chosen, team)
                           : one.axis != Exchange::Axis::context ? exchanges_.collective(collective_of(one.operation), bytes, team)
                           : one.operation == "all_to_all"       ? exchanges_.all_to_all(bytes, 1, team)
                                                                 : exchanges_.ring_step(bytes, team);
    return {seconds, link_of(exchanges_, team), one.axis};
  }

  const model::BlockShard& shard_;
  const Stack& stack_;
  const profile::Kernels& kernels_;
  const profile::Exchanges& exchanges_;
  const profile::Calibration& calibration_;
  const double loose_;  // factor on the traffic of elementwise work
  const program::BesideRules rules_;
};

}  // namespace

Spent& Spent::operator+=(const Spent& other) {
  for (double Spent::*each : kSpent) this->*each += other.*each;
  return *this;
}

PassTime& PassTime::operator+=(const PassTime& other) {
  spent += other.spent;
  for (std::size_t link = 0; link < busy.size(); ++link) busy[link] += other.busy[link];
  return *this;
}

PassTime PassTime::operator*(double factor) const {
  PassTime out = *this;
  for (double Spent::*each : kSpent) out.spent.*each *= factor;
  for (double& each : out.busy) each *= factor;
  return out;
}

profile::ProcessGroup team_of(Exchange::Axis axis, const model::BlockShard& shard) {
  switch (axis) {
    case Exchange::Axis::tensor: return {shard.tensor_parallel, 1};
    case Exchange::Axis::context: return {shard.context_parallel, shard.tensor_parallel};
    case Exchange::Axis::expert: return {shard.expert_parallel, shard.whole_experts ? 1 : shard.tensor_parallel};
    case Exchange::Axis::replica: return {shard.replicas, shard.context_parallel * shard.tensor_parallel};
  }
  return {};
}

LinkStream link_of(const profile::Exchanges& exchanges, profile::ProcessGroup team) {
  return exchanges.ranks_per_domain(team) < team.ranks ? LinkStream::leaving : LinkStream::inside;
}

profile::Collective collective_of(std::string_view operation) {
  return operation == "all_reduce"   ? profile::Collective::all_reduce
         : operation == "all_gather" ? profile::Collective::all_gather
                                     : profile::Collective::reduce_scatter;
}

model::BlockShard shard_of(const model::BlockSpec& block, const plan::Strategy& strategy, std::int64_t micro_batch,
                           model::Precision precision) {
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
  shard.replicas = model::exchanges_over_replicas(block) ? strategy.dp : 1;
  return shard;
}

LayerTime block_time(const model::BlockShard& shard, const Stack& stack, const profile::Kernels& kernels,
                     const profile::Exchanges& exchanges, const model::BlockSpec& block) {
  return BlockClock(shard, stack, kernels, exchanges).time(block);
}

}  // namespace tessera::cost
