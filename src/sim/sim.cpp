#include "sim/sim.hpp"
#include "cost/cost.hpp"

#include <algorithm>
#include <functional>
#include <map>

#include "cost/cost_model.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/trainable.hpp"
#include "sim/engine.hpp"
#include "sim/fold.hpp"
#include "sim/loaded.hpp"
#include "sim/priced.hpp"
#include "sim/stage_times.hpp"

namespace tessera::sim {
namespace {

// The shares of the step that all ranks together compute and communicate, and that the one with the longest passes stands idle.
void add_shares(Result& result, const std::vector<program::Program>& programs, const std::vector<int>& program_of) {
  const double whole = result.step.value * static_cast<double>(result.ranks.size());
  for (const RankResult& rank : result.ranks) {
    if (whole <= 0) break;
    result.utilization += rank.busy.value / whole;
    result.exposed += rank.exposed.value / whole;
  }
  result.bubble = whole > 0 ? std::clamp(1 - result.utilization - result.exposed, 0.0, 1.0) : 0;
  std::vector<double> passing(programs.size(), 0);
  std::vector<int> by_rank;
  for (std::size_t p = 0; p < programs.size(); ++p) {
    by_rank.resize(std::max<std::size_t>(by_rank.size(), programs[p].rank + 1), -1);
    by_rank[programs[p].rank] = static_cast<int>(p);
  }
  for (const Span& span : result.spans) {
    const auto& instruction = programs[by_rank[span.rank]].instructions[span.instruction];
    if (program::is_compute(instruction.op) && instruction.op != program::Op::optimizer_step)
      passing[by_rank[span.rank]] += span.end.value - span.begin.value;
  }
  double longest = 0;
  for (std::size_t r = 0; r < result.ranks.size(); ++r) {
    if (result.ranks[r].passes.value <= longest) continue;
    longest = result.ranks[r].passes.value;
    result.pipeline_bubble = std::max(0.0, 1 - passing[program_of[r]] / longest);
  }
}

std::vector<int> identity(std::size_t count) {
  std::vector<int> out(count);
  for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<int>(i);
  return out;
}

constexpr Seconds Spent::*kSpent[] = {&Spent::forward,   &Spent::backward, &Spent::recompute, &Spent::optimizer,
                                      &Spent::in_passes, &Spent::messages, &Spent::gradients, &Spent::parameters};

// Steps in a row after which one is like the next: the first has nothing to finish.
constexpr int kSettled = 4;

// The last of several steps in a row of programs whose exchanges go on in the next step: what it adds to those before it.
Result run_settled(const std::vector<program::Program>& programs, const std::function<int(int)>& program_of, Costs& costs) {
  const Result before = run_programs(program::unrolled(programs, kSettled - 1), program_of, costs);
  Result out = run_programs(program::unrolled(programs, kSettled), program_of, costs);
  std::map<int, int> counts;  // by rank: instructions of a step
  for (const program::Program& program : programs) counts[program.rank] = static_cast<int>(program.instructions.size());
  // The clock starts with the step's first pass.
  for (Span& span : out.spans) span.instruction -= (kSettled - 1) * counts.at(span.rank);
  std::erase_if(out.spans, [](const Span& span) { return span.instruction < 0; });
  const Seconds begin = out.spans.empty() ? Seconds(0) : out.spans.front().begin;
  for (Span& span : out.spans) span = {span.rank, span.instruction, span.begin - begin, span.end - begin, span.exchange};
  std::erase_if(out.memory, [&](const MemoryPoint& point) { return point.time < begin; });
  for (MemoryPoint& point : out.memory) point.time -= begin;
  out.step -= before.step;
  for (std::size_t r = 0; r < out.ranks.size(); ++r) {
    RankResult& rank = out.ranks[r];
    rank.busy -= before.ranks[r].busy;
    rank.exposed -= before.ranks[r].exposed;
    for (Seconds Spent::*part : kSpent) rank.spent.*part -= before.ranks[r].spent.*part;
    rank.idle = std::max(Seconds(0), out.step - rank.busy - rank.exposed);
    Seconds first;
    Seconds last;
    bool passed = false;
    for (const Span& span : out.spans) {
      if (span.rank != programs[r].rank) continue;
      const program::Op op = programs[r].instructions[span.instruction].op;
      if (!program::is_compute(op) || op == program::Op::optimizer_step) continue;
      if (!passed) first = span.begin;
      passed = true;
      last = std::max(last, span.end);
    }
    rank.passes = last - first;
  }
  return out;
}

Result run_folded(const std::vector<program::Program>& programs, const Fold& fold, Costs& costs) {
  const auto program_of = [&](int rank) { return fold.program_of[rank]; };
  const bool delayed = std::any_of(programs.begin(), programs.end(), [](const program::Program& program) { return program.delayed; });
  Result result = delayed ? run_settled(programs, program_of, costs) : run_programs(programs, program_of, costs);
  std::vector<RankResult> ranks;
  for (const int program : fold.program_of) ranks.push_back(result.ranks[program]);
  result.ranks = std::move(ranks);
  add_shares(result, programs, fold.program_of);
  return result;
}

// The profile's prices, which know stages that are all cut alike.
void check_priced(const plan::Plan& plan) {
  plan::check_uniform(plan, "the plan cannot be simulated on these devices in " + std::string(model::name_of(plan.precision)),
                      "accelerators in 16 or fewer bits simulate any plan");
}

}  // namespace

Result run(const std::vector<program::Program>& programs, const plan::Plan& plan, const model::ModelSpec& model,
           const model::TrainSpec& train, const cluster::ClusterSpec& cluster, const profile::Profile& profile) {
  const Fold fold = no_fold(plan);
  if (cost::CostModel::supports(cluster, plan.precision)) {
    cost::CostModel cost_model(model, cluster, plan.precision);
    LoadedCosts costs(programs, plan, cost_model);
    return run_folded(programs, fold, costs);
  }
  check_priced(plan);
  cost::Prices prices(model, train, cluster, profile);
  PricedCosts costs(programs, fold, plan, prices);
  return run_folded(programs, fold, costs);
}

Result run(const std::vector<program::Program>& programs, const StageTimes& times) {
  GivenCosts costs(programs, times);
  Result result = run_programs(
      programs, [](int rank) { return rank; }, costs);
  add_shares(result, programs, identity(programs.size()));
  return result;
}

Simulation simulate(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                    const cluster::ClusterSpec& cluster, const profile::Profile& profile, Simulated which) {
  const bool loaded = cost::CostModel::supports(cluster, plan.precision);
  if (!loaded) check_priced(plan);
  const Fold fold = which == Simulated::every_rank ? no_fold(plan) : loaded ? fold_by_place(plan) : fold_of(plan, cluster);
  Simulation out{fold.folded ? program::compile_folded(plan, model, fold.ranks) : program::compile(plan, model), {}};
  program::check(out.programs, fold.program_of);
  if (loaded) {
    cost::CostModel cost_model(model, cluster, plan.precision);
    LoadedCosts costs(out.programs, plan, cost_model);
    out.result = run_folded(out.programs, fold, costs);
    // Bytes are those of the stage's first rank, scaled to its memory.
    for (int place = 0; place < plan::pipeline_of(plan).size; ++place) {
      const std::vector<int>& ranks = plan.stages[place].ranks;
      const auto limit = [&](int rank) { return cost::memory_limit(cluster.groups[plan.ranks[rank].group].device); };
      for (const int rank : ranks)
        if (plan.ranks[rank].group != plan.ranks[ranks.front()].group)
          out.result.ranks[rank].peak_memory = Bytes(static_cast<std::int64_t>(
              static_cast<double>(out.result.ranks[rank].peak_memory.value) * (limit(rank) / limit(ranks.front()))));
    }
  } else {
    cost::Prices prices(model, train, cluster, profile);
    PricedCosts costs(out.programs, fold, plan, prices);
    out.result = run_folded(out.programs, fold, costs);
  }
  return out;
}

namespace {

plan::Prediction prediction_of(const Result& result) {
  const RankResult& busiest =
      *std::max_element(result.ranks.begin(), result.ranks.end(), [](const RankResult& a, const RankResult& b) { return a.busy < b.busy; });
  const Spent& spent = busiest.spent;
  plan::Prediction out;
  out.step = result.step;
  out.bubble = result.bubble;
  const std::pair<const char*, Seconds> parts[] = {{"forward", spent.forward},
                                                   {"backward", spent.backward},
                                                   {"recompute", spent.recompute},
                                                   {"exchange in passes", spent.in_passes},
                                                   {"messages between stages", spent.messages},
                                                   {"gradient exchange", spent.gradients},
                                                   {"optimizer", spent.optimizer},
                                                   {"parameter gather", spent.parameters},
                                                   {"idle", busiest.idle}};
  for (const auto& [name, seconds] : parts)
    if (seconds > Seconds(0)) out.parts.emplace_back(name, seconds);
  for (const RankResult& rank : result.ranks) out.memory.push_back(rank.peak_memory);
  return out;
}

}  // namespace

plan::Prediction predict(const plan::Plan& plan, cost::Prices& prices) {
  check_priced(plan);
  const Fold fold = fold_of(plan, prices.cluster());
  const std::vector<program::Program> programs =
      fold.folded ? program::compile_folded(plan, prices.model(), fold.ranks) : program::compile(plan, prices.model());
  PricedCosts costs(programs, fold, plan, prices);
  return prediction_of(run_folded(programs, fold, costs));
}

}  // namespace tessera::sim
