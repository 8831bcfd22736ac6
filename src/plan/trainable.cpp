#include "plan/trainable.hpp"

#include <algorithm>
#include <map>

#include "model/forms.hpp"
#include "plan/tensor_cut.hpp"

namespace tessera::plan {
namespace {

struct Fault {
  Where where;
  std::string what;
  std::string expected;
};

std::optional<Fault> fault_of(const Plan& plan) {
  if (plan.precision != model::Precision::f32 && plan.precision != model::Precision::bf16)
    return Fault{plan.where, text("precision ", model::name_of(plan.precision)), "fp32 or bf16"};
  return {};
}

// A rank holds a parameter that its blocks share once.
std::optional<Fault> tied_fault(const Plan& plan, const model::ModelSpec& model) {
  struct Holder {
    int block = 0;
    const Stage* stage = nullptr;
  };
  std::map<std::string, std::vector<Holder>> holders;
  const auto blocks = model.blocks();
  for (const Stage& stage : plan.stages)
    for (int b = stage.first_block(); b < stage.last_block(); ++b)
      for (const model::ParameterSpec& parameter : blocks[static_cast<std::size_t>(b)].spec->parameters) {
        const std::string own = blocks[static_cast<std::size_t>(b)].parameter_name(parameter);
        std::vector<Holder>& others = holders[parameter.tied_to.empty() ? own : parameter.tied_to];
        for (const Holder& other : others)
          if (other.stage->ranks == stage.ranks && !other.stage->strategy_of(other.block).same_layout(stage.strategy_of(b)))
            return Fault{stage.where,
                         text("blocks ", other.block, " and ", b, " share a parameter on the same ranks, and have ",
                              to_text(other.stage->strategy_of(other.block)), " and ", to_text(stage.strategy_of(b))),
                         "the same dp and tp for both"};
        others.push_back({b, &stage});
      }
  return {};
}

// Of a model, of which blocks the trainer computes none, or something else.
std::optional<Fault> fault_of(const model::ModelSpec& model, const Where& where) {
  if (!model.plugin.empty()) return {};
  for (const model::Repeat& repeat : model.repeats) {
    const model::BlockSpec& block = repeat.block;
    const auto said = [&](const char* key, double value) { return block.dims.contains(key) && block.dims.at(key) == value; };
    if (model.arch == "gpt" && said("relative_bias", 1))
      return Fault{where, "its GPT has learned or rotary positions, or none", "positions: learned, positions: rotary or positions: none"};
    if (block.kind == "moe_layer" && block.dims.contains("kv_lora"))
      return Fault{where, "it does not compute latent attention yet", "arch mixtral or qwen_moe"};
    if (!model::computed_by_nn(block))
      return Fault{where, text("it cannot compute blocks of kind '", block.kind, "' yet"),
                   "arch llama (Llama, Mistral, Qwen2 and Qwen3), mixtral, qwen_moe or gpt"};
    if (said("attention_fused", 0))
      return Fault{where, "it computes attention in one kernel, and the model says attention: unfused", "attention: fused"};
    if (said("autograd", 1))
      return Fault{where, "its blocks keep what they need themselves, and the model says keeps: autograd", "keeps: tessera"};
  }
  return {};
}

// Blocks that autograd differentiates stand whole on each rank, and keep all of what a pass needs or nothing.
std::optional<Fault> whole_block_fault(const Plan& plan, const model::ModelSpec& model) {
  if (cut_by_trainer(model)) return {};
  for (const Stage& stage : plan.stages)
    for (const StrategyRun& run : stage.runs) {
      if (run.strategy.tp > 1)
        return Fault{run.where, text("tp ", run.strategy.tp, " cuts blocks of arch ", model.arch, ", which stand whole"), "tp 1"};
      if (run.strategy.cp > 1)
        return Fault{run.where, text("cp ", run.strategy.cp, " cuts sequences, and blocks of arch ", model.arch, " take whole ones"),
                     "cp 1"};
      if (run.strategy.recompute == model::Recompute::selective)
        return Fault{run.where, text("recompute selective, and blocks of arch ", model.arch, " are computed again as a whole"),
                     "recompute none or full"};
    }
  return {};
}

// Ulysses gives each context-parallel rank some heads.
std::optional<Fault> head_fault(const Plan& plan, const model::ModelSpec& model) {
  for (const Stage& stage : plan.stages)
    for (const StrategyRun& run : stage.runs) {
      const Strategy& s = run.strategy;
      if (s.cp == 1 || s.context == model::ContextKind::ring || model.dim("heads") / s.tp % s.cp == 0) continue;
      return Fault{run.where,
                   text("cp ", s.cp, " with context ulysses, which does not divide the ", model.dim("heads") / s.tp,
                        " query heads of a tensor-parallel rank"),
                   "a degree that divides them, or context: ring"};
    }
  return {};
}

// Sequence parallelism cuts what a rank has of each sample into equal parts.
std::optional<Fault> sequence_fault(const Plan& plan, const model::ModelSpec& model) {
  for (const Stage& stage : plan.stages)
    for (const StrategyRun& run : stage.runs) {
      const Strategy& s = run.strategy;
      if (!s.sequence_parallel || sequence_divides(model, s.tp * s.cp)) continue;
      return Fault{run.where,
                   s.cp == 1 ? text("sequence_parallel with tp ", s.tp, ", which does not divide seq ", model.dim("seq"))
                             : text("sequence_parallel with tp ", s.tp, " x cp ", s.cp, ", which do not divide seq ", model.dim("seq")),
                   "degrees that divide seq, or sequence_parallel: false"};
    }
  return {};
}

[[noreturn]] void refuse(const Fault& fault, const std::string& refusal, const std::string& hint) {
  throw Error(ErrorCode::invalid_config, text(refusal, ": ", fault.what), fault.where, fault.expected, hint);
}

}  // namespace

void check_precision(const Plan& plan, const std::string& refusal, const std::string& hint) {
  if (const auto fault = fault_of(plan)) refuse(*fault, refusal, hint);
}

void check_trainable(const model::ModelSpec& model, const Where& where) {
  if (const auto fault = fault_of(model, where))
    refuse(*fault, "the trainer cannot run the model",
           "`tessera plan` plans and simulates it, and with --write hands the plan to other trainers");
}

void check_trainable(const Plan& plan, const model::ModelSpec& model) {
  check_trainable(model, plan.where);
  const std::string refusal = "the trainer cannot run the plan";
  const std::string hint = "the plan can be simulated: tessera simulate TRAIN.yaml --plan PLAN";
  check_precision(plan, refusal, hint);
  for (const auto& fault : {tied_fault(plan, model), whole_block_fault(plan, model), head_fault(plan, model), sequence_fault(plan, model)})
    if (fault) refuse(*fault, refusal, hint);
}

}  // namespace tessera::plan
