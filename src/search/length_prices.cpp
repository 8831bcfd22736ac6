// What passes over samples of different lengths cost under a plan.
#include <algorithm>
#include <numeric>
#include <string_view>

#include "base/error.hpp"
#include "plan/tensor_cut.hpp"
#include "plan/uneven_batch.hpp"
#include "search/as_trained.hpp"

namespace tessera::search {
namespace {

// Launching the operators of a block, forward and backward, on a CPU worker: about 40 of them.
constexpr double kLaunched = 4e-4;
// Of a prediction's parts (sim.cpp, closed_form.cpp), those that do not depend on samples.
constexpr std::string_view kOncePerStep[] = {"gradient exchange", "optimizer", "parameter gather", "parameter exchange"};

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

plan::Lengths length_prices(const plan::Plan& plan, const model::JobSpec& job, const profile::Profile& profile,
                            cost::CostModel& cost_model) {
  const plan::Stage& stage = plan.stages.front();
  const int devices = cost_model.devices_of(plan, stage);
  const auto seq = static_cast<double>(job.model.dim("seq"));
  const int widest = stage.runs.front().strategy.cp;
  // Of a block whose sequences so many ranks share.
  const auto load_of = [&](int block, int degree) -> const cost::BlockLoad& {
    plan::Strategy strategy = stage.strategy_of(block);
    strategy.dp = strategy.copies() / degree;
    strategy.cp = degree;
    return cost_model.block(cost_model.repeat_of()[block], devices, strategy, strategy.dp);
  };
  plan::Lengths out;
  for (const std::int64_t degree : plan::divisors_of(widest)) {
    if (!job.parallel.flexible_groups && degree != widest) continue;
    double exchange = 0;
    for (int b = 0; b < stage.last_block(); ++b) {
      const cost::BlockLoad& load = load_of(b, static_cast<int>(degree));
      exchange += load.forward_exchange + load.backward_exchange;
    }
    out.groups.push_back({static_cast<int>(degree), degree == 1 ? 0 : exchange * static_cast<double>(degree) / seq});
  }
  for (int b = 0; b < stage.last_block(); ++b) {
    const cost::BlockLoad& load = load_of(b, 1);
    const double seconds = load.forward + load.backward() - load.forward_exchange - load.backward_exchange;
    const model::BlockSpec& block = job.model.repeats[cost_model.repeat_of()[b]].block;
    const auto measured = profile::share_of_pairs(profile, block, job.train.precision, job.model.dim("seq"));
    const double share = measured ? *measured : attention_share(block);
    out.token += seconds * (1 - share) / seq;
    out.pair += seconds * share / (seq * seq / 2);
    out.pass += kLaunched;
  }
  return out;
}

bool price_by_lengths(plan::Plan& plan, std::span<const std::int64_t> samples, std::int64_t seq, Seconds most) {
  const int ranks = plan.stages.front().width();
  const std::int64_t tokens = plan::tokens_per_rank(plan, seq);
  const auto batch = static_cast<std::size_t>(plan.global_batch);
  const std::size_t batches = samples.size() / batch;
  ensure(batches > 0 && samples.size() % batch == 0, "lengths of whole batches");
  plan::Prediction& prediction = *plan.predicted;
  double rest = 0, least = 0, passes = 0, idle = 0;
  for (const auto& [name, seconds] : prediction.parts)
    if (std::ranges::find(kOncePerStep, name) != std::end(kOncePerStep)) rest += seconds.value;
  const auto mean_of = [&](const auto& seconds_of, double& mean) {
    for (std::size_t i = 0; i < batches; ++i) mean += seconds_of(samples.subspan(i * batch, batch)) / static_cast<double>(batches);
  };
  mean_of([&](std::span<const std::int64_t> one) { return plan::least_seconds(one, *plan.lengths, ranks, tokens); }, least);
  if (least + rest >= most.value) return false;
  mean_of(
      [&](std::span<const std::int64_t> one) {
        const plan::UnevenBatch dealt = plan::deal(one, *plan.lengths, ranks, tokens);
        idle += dealt.seconds * dealt.idle / static_cast<double>(batches);
        return dealt.seconds;
      },
      passes);
  prediction.step = Seconds(passes + rest);
  prediction.parts = {{"passes", Seconds(passes - idle)}, {"gradients, optimizer", Seconds(rest)}, {"idle", Seconds(idle)}};
  prediction.bubble = idle / prediction.step.value;
  plan.lengths->mean =
      static_cast<double>(std::accumulate(samples.begin(), samples.end(), std::int64_t{0})) / static_cast<double>(samples.size());
  return true;
}

}  // namespace tessera::search
