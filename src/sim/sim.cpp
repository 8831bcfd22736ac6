#include "sim/sim.hpp"

#include <algorithm>
#include <map>

#include "base/log.hpp"
#include "cost/cost.hpp"
#include "cost/lower_bound.hpp"
#include "model/forms.hpp"
#include "plan/schedule/schedule.hpp"
#include "program/chrome_trace.hpp"
#include "sim/engine.hpp"
#include "sim/fold.hpp"
#include "sim/model_costs.hpp"

namespace tessera::sim {
namespace {

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
  // Only some exchanges can be played through.
  if (cost::plays_exchanges(plan, cluster) && !model::computed_by_nn(plan.precision))
    throw Error(ErrorCode::invalid_config, text("the plan cannot be simulated on these devices in ", model::name_of(plan.precision)),
                plan.where, "fp32 or bf16", "accelerators in 16 or fewer bits simulate any plan");
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
  Result out = run_programs(folded.programs, folded.fold.program_of, costs);
  if (!cost::plays_exchanges(plan, cost_model.cluster())) scale_memory(out.ranks, plan, cost_model.cluster());
  return out;
}

// A net under the simulator: no plan is known that it catches.
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

Simulation simulate(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                    const cluster::ClusterSpec& cluster, const profile::Profile& profile, Simulated which) {
  cost::CostModel cost_model(model, train, cluster, profile);
  return simulate(plan, cost_model, which);
}

plan::Prediction predict(const plan::Plan& plan, cost::CostModel& cost_model) {
  const Result result = run_folded(fold(plan, cost_model), plan, cost_model);
  const RankResult& busiest = *std::ranges::max_element(result.ranks, {}, &RankResult::busy);
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

std::string to_chrome_trace(const Result& result, const std::vector<program::Program>& programs) {
  program::ChromeTrace trace;
  std::map<int, const program::Program*> program_of;
  for (const program::Program& program : programs) {
    trace.add_rank(program);
    trace.add_step(program, 0, Seconds(0), result.step);
    program_of[program.rank] = &program;
  }
  for (const Span& span : result.spans) {
    const program::Program& program = *program_of.at(span.rank);
    trace.add(program, span.instruction, 0, span.begin, span.end);
    if (span.exposed > Seconds(0)) trace.add_exposed(program, span.instruction, 0, span.end - span.exposed, span.end);
  }
  for (const MemoryPoint& point : result.memory) trace.add_memory(point.rank, point.time, point.bytes);
  return trace.to_json();
}

}  // namespace tessera::sim
