#include "interop/flags_shared.hpp"

#include <algorithm>
#include <tuple>

#include "plan/schedule/schedule.hpp"

namespace tessera::interop {
namespace {

plan::Strategy effective(plan::Strategy strategy) {
  strategy.recompute = model::Recompute::none;
  if (strategy.tp == 1) strategy.sequence_parallel = false;
  if (strategy.cp == 1) strategy.context = model::ContextKind::ring;
  if (strategy.dp * strategy.cp == 1) strategy.zero = 0;
  if (strategy.zero == 0 || strategy.shards == strategy.copies()) strategy.shards = 0;
  return strategy;
}

std::string words(const plan::Strategy& s) {
  std::string out = text("dp ", s.dp, " x tp ", s.tp);
  if (s.cp > 1) out += text(" x cp ", s.cp, s.context == model::ContextKind::ring ? " (ring)" : " (ulysses)");
  if (s.ep > 1) out += text(", ep ", s.ep);
  if (s.whole_experts) out += ", whole experts";
  out += text(", zero ", s.zero);
  if (s.shards > 0) out += text(" over ", s.shards);
  if (s.sequence_parallel) out += ", sequence parallel";
  if (s.offload_optimizer) out += ", offloaded optimizer";
  return out;
}

const plan::StrategyRun& run_of_first_layer(const plan::Plan& plan) {
  for (const plan::Stage& stage : plan.stages)
    for (const plan::StrategyRun& run : stage.runs)
      if (run.last > 1) return run;
  throw Error(ErrorCode::internal, "a plan without layers");
}

void check_ranks(const plan::Plan& plan, const SharedPlan& shared, const std::string& system) {
  for (int rank = 1; rank < plan.world_size(); ++rank) {
    const auto at = [&](int r) { return std::tuple(plan.ranks[r].group, plan.ranks[r].node, plan.ranks[r].device); };
    if (at(rank) < at(rank - 1))
      refuse_for(system, plan.ranks[rank].where, text("rank ", rank, " stands before rank ", rank - 1),
                 "ranks numbered by group, node and device, as launchers number them");
  }
  int next = 0;
  for (int pipeline_rank = 0; pipeline_rank < shared.pipeline_size; ++pipeline_rank)
    for (const int rank : plan.stages[pipeline_rank].ranks)
      if (rank != next++)
        refuse_for(system, plan.stages[pipeline_rank].where,
                   text("stage ", pipeline_rank, " has rank ", rank, " where rank ", next - 1, " would be"),
                   "ranks numbered stage by stage, neighbours on the same node",
                   "fix the degrees, parallel: {tp: ..., pp: ...}: such plans stand node after node");
}

}  // namespace

void refuse_for(const std::string& system, const Where& where, const std::string& message, const std::string& expected,
                const std::string& hint) {
  throw Error(ErrorCode::invalid_config, system + " cannot run this plan: " + message, where, expected, hint);
}

bool SharedPlan::all_layers(model::Recompute recompute) const {
  for (const auto& stage : layers)
    for (const plan::StrategyRun* run : stage)
      if (run->strategy.recompute != recompute) return false;
  return true;
}

SharedPlan shared_plan(const plan::Plan& plan, const model::ModelSpec& model, const std::string& system) {
  const plan::Pipeline pipeline = pipeline_of(plan);
  if (plan.delayed_exchange)
    refuse_for(system, plan.where, "it exchanges gradients while the next step begins", "delayed_exchange: false",
               "with train.optimizer.clip above 0 no plan delays the exchange");
  if (plan.lengths) refuse_for(system, plan.where, "it deals samples of different lengths to groups of ranks", "no data.lengths");
  if (pipeline.size > 1 && !plan.order.empty()) refuse_for(system, plan.where, "it has an order of its own", "a schedule by name");
  const plan::StrategyRun& common = run_of_first_layer(plan);
  SharedPlan shared{effective(common.strategy), pipeline.size, pipeline.chunks, plan.micro_batch_size(common.strategy.dp), {}};
  for (const plan::Stage& stage : plan.stages) {
    if (!stage.shares.empty())
      refuse_for(system, stage.where, "its stages share a micro-batch unevenly", "the same samples for all replicas");
    if (shared.layers.empty() || shared.pipeline_size > 1) shared.layers.emplace_back();
    for (const plan::StrategyRun& run : stage.runs) {
      // Layers are the blocks between the first and the last.
      const int first = std::max(run.first, 1);
      const int last = std::min(run.last, model.block_count() - 1);
      plan::Strategy here = effective(run.strategy);
      // Embedding and head have no experts.
      if (first >= last) here.ep = shared.strategy.ep;
      if (first >= last) here.whole_experts = shared.strategy.whole_experts;
      if (here != shared.strategy)
        refuse_for(system, run.where,
                   text("blocks [", run.first, ", ", run.last, ") have ", words(here), ", blocks [", common.first, ", ", common.last,
                        ") have ", words(shared.strategy)),
                   "one strategy for all blocks", "with degrees in `parallel:`, such as {dp: 4, tp: 2}, plans cut all blocks alike");
      for (int layer = first; layer < last; ++layer) shared.layers.back().push_back(&run);
    }
  }
  check_ranks(plan, shared, system);
  return shared;
}

}  // namespace tessera::interop
