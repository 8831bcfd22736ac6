#include "plan/trainable.hpp"

#include "plan/tensor_cut.hpp"

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
  if (s.offload_optimizer) return Fault{where, "offload_optimizer", "offload_optimizer: false"};
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
      if (run.strategy.sequence_parallel != common.sequence_parallel)
        return Fault{run.where, text("blocks [", run.first, ", ", run.last, ") have sequence_parallel otherwise than block 0"),
                     "sequence_parallel in all blocks or in none"};
    }
  }
  return {};
}

[[noreturn]] void refuse(const Fault& fault, const std::string& refusal, const std::string& hint) {
  throw Error(ErrorCode::invalid_config, text(refusal, ": ", fault.what), fault.where, fault.expected, hint);
}

}  // namespace

void check_uniform(const Plan& plan, const std::string& refusal, const std::string& hint) {
  if (const auto fault = fault_of(plan)) refuse(*fault, refusal, hint);
}

void check_trainable(const Plan& plan, const model::ModelSpec& model) {
  const std::string refusal = "the trainer cannot run the plan";
  check_uniform(plan, refusal, "the plan can be simulated: tessera simulate TRAIN.yaml --plan PLAN");
  const StrategyRun& run = plan.stages.front().runs.front();
  if (run.strategy.sequence_parallel && !sequence_divides(model, run.strategy.tp))
    refuse({run.where, text("sequence_parallel with tp ", run.strategy.tp, ", which does not divide seq ", model.dim("seq")),
            "a degree that divides seq, or sequence_parallel: false"},
           refusal, {});
}

}  // namespace tessera::plan
