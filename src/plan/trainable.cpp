#include "plan/trainable.hpp"

namespace tessera::plan {
namespace {

struct Fault {
  Where where;
  std::string what;
  std::string expected;
};

std::optional<Fault> fault_of(const Strategy& s, const Where& where) {
  if (s.cp > 1) return Fault{where, text("cp ", s.cp), "cp 1"};
  if (s.whole_experts) return Fault{where, "whole_experts", "whole_experts: false"};
  if (s.ep > 1) return Fault{where, text("ep ", s.ep), "ep 1"};
  if (s.sequence_parallel) return Fault{where, "sequence_parallel", "sequence_parallel: false"};
  if (s.offload_optimizer) return Fault{where, "offload_optimizer", "offload_optimizer: false"};
  if (s.recompute == model::Recompute::selective) return Fault{where, "recompute selective", "recompute none or full"};
  return {};
}

std::optional<Fault> fault_of(const Plan& plan) {
  const Strategy& common = plan.stages.front().runs.front().strategy;
  if (plan.precision != model::Precision::f32 && plan.precision != model::Precision::bf16)
    return Fault{plan.where, text("precision ", model::name_of(plan.precision)), "fp32 or bf16"};
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.shares != plan.stages.front().shares)
      return Fault{stage.where, text("stage ", s, " shares a micro-batch otherwise than stage 0"), "the same shares in all stages"};
    for (const StrategyRun& run : stage.runs) {
      if (auto fault = fault_of(run.strategy, run.where)) return fault;
      if (plan.delayed_exchange && run.strategy.zero > 1)
        return Fault{run.where, text("zero ", run.strategy.zero, " with delayed_exchange"), "zero 0 or 1, or no delayed_exchange"};
      if (run.strategy.dp != common.dp || run.strategy.tp != common.tp)
        return Fault{
            run.where,
            text("stage ", s, " has dp ", run.strategy.dp, " x tp ", run.strategy.tp, ", stage 0 has dp ", common.dp, " x tp ", common.tp),
            "the same degrees in all stages"};
    }
  }
  return {};
}

}  // namespace

void check_uniform(const Plan& plan, const std::string& refusal, const std::string& hint) {
  if (const auto fault = fault_of(plan))
    throw Error(ErrorCode::invalid_config, text(refusal, ": ", fault->what), fault->where, fault->expected, hint);
}

void check_trainable(const Plan& plan) {
  const std::string hint = "the plan can be simulated: tessera simulate TRAIN.yaml --plan PLAN";
  check_uniform(plan, "the trainer cannot run the plan", hint);
}

}  // namespace tessera::plan
