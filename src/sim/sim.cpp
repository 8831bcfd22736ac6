#include "sim/sim.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "base/log.hpp"
#include "cost/cost.hpp"
#include "cost/lower_bound.hpp"
#include "model/forms.hpp"
#include "plan/schedule/schedule.hpp"
#include "sim/engine.hpp"
#include "sim/fold.hpp"
#include "sim/model_costs.hpp"

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

// Costs given directly.
class GivenCosts final : public Costs {
 public:
  GivenCosts(const std::vector<program::Program>& programs, const plan::StageTimes& times) : programs_(programs), times_(times) {}

  Compute compute(int index, const program::Instruction& instruction) override {
    using program::Op;
    if (instruction.op == Op::optimizer_step) return {};
    const program::Chunk& chunk = programs_[index].chunks[programs_[index].chunk_of(instruction.first_block)];
    const double share = static_cast<double>(instruction.last_block - instruction.first_block) / (chunk.last_block - chunk.first_block);
    double seconds = 0;
    if (instruction.op == Op::forward) seconds += times_.forward.value;
    if (instruction.op == Op::backward || instruction.op == Op::backward_input) seconds += times_.backward_input.value;
    if (instruction.op == Op::backward || instruction.op == Op::backward_weight) seconds += times_.backward_weight.value;
    return {.seconds = seconds * share, .exposed = {}};
  }
  Transfer message(int, const program::Instruction&) override { return {.seconds = times_.message.value, .uses = {}}; }
  Transfer collective(int, const program::Instruction&) override { return {}; }
  Transfer rows(int, const program::Instruction&) override { return {}; }
  program::MemoryBudget memory(int index) override {
    program::MemoryBudget budget;
    budget.chunks.assign(programs_[index].chunks.size(), {1, 1});
    return budget;
  }

 private:
  const std::vector<program::Program>& programs_;
  const plan::StageTimes& times_;
};

constexpr Seconds Spent::*kSpent[] = {&Spent::forward,  &Spent::backward,  &Spent::recompute,  &Spent::optimizer, &Spent::in_passes,
                                      &Spent::messages, &Spent::gradients, &Spent::parameters, &Spent::rows};

// Steps in a row after which one is like the next: the first has nothing to finish.
constexpr int kSettled = 4;

// The last of several steps in a row of programs of which one step waits for the one before: what it adds to those before it.
Result run_settled(const std::vector<program::Program>& programs, const std::function<int(int)>& program_of, Costs& costs) {
  const Result before = run_programs(program::unrolled(programs, kSettled - 1), program_of, costs);
  Result out = run_programs(program::unrolled(programs, kSettled), program_of, costs);
  std::map<int, int> counts;  // by rank: instructions of a step
  for (const program::Program& program : programs) counts[program.rank] = static_cast<int>(program.instructions.size());
  // The clock starts with the step's first pass.
  for (Span& span : out.spans) span.instruction -= (kSettled - 1) * counts.at(span.rank);
  std::erase_if(out.spans, [](const Span& span) { return span.instruction < 0; });
  const Seconds begin = out.spans.empty() ? Seconds(0) : out.spans.front().begin;
  for (Span& span : out.spans) span = {span.rank, span.instruction, span.begin - begin, span.end - begin, span.exposed};
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
  const bool crossing =
      std::any_of(programs.begin(), programs.end(), [](const program::Program& program) { return program.crosses_steps(); });
  Result result = crossing ? run_settled(programs, program_of, costs) : run_programs(programs, program_of, costs);
  std::vector<RankResult> ranks;
  for (const int program : fold.program_of) ranks.push_back(result.ranks[program]);
  result.ranks = std::move(ranks);
  add_shares(result, programs, fold.program_of);
  return result;
}

// Only some exchanges can be played through.
void check_played(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  if (cost::plays_exchanges(plan, cluster) && !model::computed_by_nn(plan.precision))
    throw Error(ErrorCode::invalid_config, text("the plan cannot be simulated on these devices in ", model::name_of(plan.precision)),
                plan.where, "fp32 or bf16", "accelerators in 16 or fewer bits simulate any plan");
}

// Bytes are those of the stage's first rank, scaled to the memory of each.
void scale_memory(std::vector<RankResult>& ranks, const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  const std::vector<Bytes> limits = cost::memory_limits(plan, cluster);
  for (int pipeline_rank = 0; pipeline_rank < plan::pipeline_of(plan).size; ++pipeline_rank) {
    const int first = plan.stages[pipeline_rank].ranks.front();
    for (const int rank : plan.stages[pipeline_rank].ranks)
      if (limits[rank] != limits[first])
        ranks[rank].peak_memory =
            Bytes(static_cast<std::int64_t>(static_cast<double>(ranks[rank].peak_memory.value) * (limits[rank] / limits[first])));
  }
}

// A plan's programs, one for all ranks that do the same.
struct Folded {
  Fold fold;
  std::vector<program::Program> programs;
};

Folded fold(const plan::Plan& plan, const cost::CostModel& cost_model, Simulated which = Simulated::one_of_alike) {
  const cluster::ClusterSpec& cluster = cost_model.cluster();
  check_played(plan, cluster);
  // Ranks with parameter servers are not like the others.
  Folded out{which == Simulated::every_rank || !plan.servers.empty() ? no_fold(plan)
             : cost::plays_exchanges(plan, cluster)                  ? fold_of(plan, cluster)
                                                                     : fold_by_pipeline_rank(plan),
             {}};
  const model::ModelSpec& model = cost_model.model();
  out.programs = out.fold.folded ? program::compile_folded(plan, model, out.fold.ranks) : program::compile(plan, model);
  return out;
}

Result run_folded(const Folded& folded, const plan::Plan& plan, cost::CostModel& cost_model) {
  ModelCosts costs(folded.programs, folded.fold, plan, cost_model);
  Result out = run_folded(folded.programs, folded.fold, costs);
  if (!cost::plays_exchanges(plan, cost_model.cluster())) scale_memory(out.ranks, plan, cost_model.cluster());
  return out;
}

// The simulator does not know everything: not every message that meets another one between stages of unequal width.
void warn_below_bound(const Result& result, const plan::Plan& plan, const cost::CostModel& cost_model) {
  if (cost::plays_exchanges(plan, cost_model.cluster())) return;
  for (const auto& [resource, least] : cost::least_times(plan, cost_model.model(), cost_model.cluster()))
    if (result.step < least * (1 - 1e-9))
      log::warning(text("the simulated step, ", to_text(result.step), ", is shorter than ", to_text(least),
                        ", which data sheets alone ask for ", resource, "; it will take longer than simulated"));
}

}  // namespace

Simulation simulate(const plan::Plan& plan, cost::CostModel& cost_model, Simulated which) {
  Folded folded = fold(plan, cost_model, which);
  program::check(folded.programs, folded.fold.program_of);
  Result result = run_folded(folded, plan, cost_model);
  warn_below_bound(result, plan, cost_model);
  return {std::move(folded.programs), std::move(result)};
}

Result run(const std::vector<program::Program>& programs, const plan::Plan& plan, const model::ModelSpec& model,
           const model::TrainSpec& train, const cluster::ClusterSpec& cluster, const profile::Profile& profile) {
  cost::CostModel cost_model(model, train, cluster, profile);
  check_played(plan, cluster);
  const Fold fold = no_fold(plan);
  ModelCosts costs(programs, fold, plan, cost_model);
  return run_folded(programs, fold, costs);
}

Result run(const std::vector<program::Program>& programs, const plan::StageTimes& times) {
  GivenCosts costs(programs, times);
  Result result = run_programs(
      programs, [](int rank) { return rank; }, costs);
  std::vector<int> each(programs.size());
  std::iota(each.begin(), each.end(), 0);
  add_shares(result, programs, each);
  return result;
}

Simulation simulate(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                    const cluster::ClusterSpec& cluster, const profile::Profile& profile, Simulated which) {
  cost::CostModel cost_model(model, train, cluster, profile);
  return simulate(plan, cost_model, which);
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
                                                   {"rows of tables", spent.rows},
                                                   {"idle", busiest.idle}};
  for (const auto& [name, seconds] : parts)
    if (seconds > Seconds(0)) out.parts.emplace_back(name, seconds);
  for (const RankResult& rank : result.ranks) out.memory.push_back(rank.peak_memory);
  return out;
}

}  // namespace

plan::Prediction predict(const plan::Plan& plan, cost::CostModel& cost_model) {
  return prediction_of(run_folded(fold(plan, cost_model), plan, cost_model));
}

}  // namespace tessera::sim
