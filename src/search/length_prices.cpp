#include "search/length_prices.hpp"

#include "plan/tensor_cut.hpp"

namespace tessera::search {
namespace {

// Launching the operators of a block, forward and backward, on a CPU worker: about 40 of them.
constexpr double kLaunched = 4e-4;

double attention_share(const model::BlockSpec& block) {
  double attention = 0, all = 0;
  const model::BlockCost cost = model::cost_of(block, {});
  for (const auto* operators : {&cost.forward_operators, &cost.backward_operators})
    for (const model::Operator& one : *operators) {
      all += one.flops.value;
      if (one.kind == model::Operator::Kind::attention) attention += one.flops.value;
    }
  return all > 0 ? attention / all : 0;
}

}  // namespace

plan::Lengths length_prices(const plan::Plan& plan, const model::JobSpec& job, cost::CostModel& cost_model) {
  const plan::Stage& stage = plan.stages.front();
  const int devices = cost_model.devices_of(plan, stage);
  const auto seq = static_cast<double>(job.model.dim("seq"));
  const int widest = stage.runs.front().strategy.cp;
  // Of a block whose sequences so many ranks share.
  const auto load_of = [&](int block, plan::Strategy strategy, int degree) {
    strategy.dp = strategy.copies() / degree;
    strategy.cp = degree;
    return cost_model.block(cost_model.repeat_of()[block], devices, strategy, strategy.dp);
  };
  plan::Lengths out;
  for (const std::int64_t degree : plan::divisors_of(widest)) {
    if (!job.parallel.flexible_groups && degree != widest) continue;
    double exchange = 0;
    for (const plan::StrategyRun& run : stage.runs)
      for (int b = run.first; b < run.last; ++b) {
        const cost::BlockLoad load = load_of(b, run.strategy, static_cast<int>(degree));
        exchange += load.forward_exchange + load.backward_exchange;
      }
    out.groups.push_back({static_cast<int>(degree), degree == 1 ? 0 : exchange * static_cast<double>(degree) / seq});
  }
  for (const plan::StrategyRun& run : stage.runs)
    for (int b = run.first; b < run.last; ++b) {
      const int repeat = cost_model.repeat_of()[b];
      const cost::BlockLoad load = load_of(b, run.strategy, 1);
      const double seconds = load.forward + load.backward() - load.forward_exchange - load.backward_exchange;
      const double share = attention_share(job.model.repeats[repeat].block);
      out.token += seconds * (1 - share) / seq;
      out.pair += seconds * share / (seq * seq / 2);
      out.pass += kLaunched;
    }
  return out;
}

}  // namespace tessera::search
