// Keys as torchtitan/config/job_config.py of torchtitan 0.2.2 has them.
#include <set>

#include "interop/flags.hpp"
#include "interop/flags_shared.hpp"
#include "plan/tensor_cut.hpp"

namespace tessera::interop {
namespace {

const std::string kTorchtitan = "torchtitan";

[[noreturn]] void refuse_torchtitan(const Where& where, const std::string& message, const std::string& expected = {},
                                    const std::string& hint = {}) {
  refuse_for(kTorchtitan, where, message, expected, hint);
}

// torchtitan's own conditions on how many micro-batches each schedule of torch.distributed.pipelining takes are checked too.
std::string schedule_name(const plan::Plan& plan, int pipeline_size) {
  const auto needs = [&](bool met, const std::string& expected) {
    if (!met) refuse_torchtitan(plan.where, text(plan.micro_batches, " micro-batches for ", plan.stages.size(), " stages"), expected);
  };
  const std::int64_t stages = static_cast<std::int64_t>(plan.stages.size());
  switch (plan.schedule) {
    case plan::Schedule::one_f_one_b: needs(plan.micro_batches >= stages, text("at least ", stages, " under 1f1b")); return "1F1B";
    case plan::Schedule::gpipe: return "GPipe";
    case plan::Schedule::interleaved:
      needs(plan.micro_batches % std::max<std::int64_t>(1, plan.micro_batches / pipeline_size) == 0,
            "a number that groups of the pipeline's length or evenly more divide");
      return "Interleaved1F1B";
    case plan::Schedule::zb_v: return "ZBVZeroBubble";
    case plan::Schedule::dualpipe_v:
      needs(plan.micro_batches >= stages, text("at least ", stages, " under dualpipe-v"));
      return "DualPipeV";
    case plan::Schedule::zb_h1:
    case plan::Schedule::zb_h2: break;
  }
  refuse_torchtitan(plan.where, text("its schedule is ", name_of(plan.schedule)), "1f1b, gpipe, interleaved, zb-v or dualpipe-v");
}

std::string modules(const SharedPlan& shared) {
  std::string out = "[\n";
  int layer = 0;
  for (std::size_t s = 0; s < shared.layers.size(); ++s) {
    std::string names = s == 0 ? ", \"tok_embeddings\"" : "";
    for (std::size_t i = 0; i < shared.layers[s].size(); ++i) names += text(", \"layers.", layer++, "\"");
    if (s + 1 == shared.layers.size()) names += ", \"norm\", \"output\"";
    out += "  [" + names.substr(2) + "],\n";
  }
  return out + "]";
}

// By FSDP; else parameters are replicated, which torchtitan does under data parallelism alone.
bool is_sharded(const plan::Plan& plan, const SharedPlan& shared) {
  const plan::Strategy& strategy = shared.strategy;
  if (strategy.dp * strategy.cp == 1) return false;
  if (strategy.zero == 0 && (strategy.cp > 1 || strategy.tp > 1 || shared.pipeline_size > 1))
    refuse_torchtitan(plan.stages.front().where,
                      text("zero 0 with dp ", strategy.dp, " beside cp ", strategy.cp, ", tp ", strategy.tp, " and ", shared.pipeline_size,
                           shared.pipeline_size == 1 ? " stage" : " stages"),
                      "zero 1, 2 or 3");
  return strategy.zero > 0;
}

// What torchtitan does otherwise than the plan says, with the same result.
std::string notes(const plan::Plan& plan, const SharedPlan& shared) {
  const plan::Strategy& strategy = shared.strategy;
  const bool piped = shared.pipeline_size > 1;
  const bool accumulates = !piped && plan.micro_batches > 1 && strategy.dp * strategy.cp > 1;
  std::string out;
  if (strategy.tp > 1 && !strategy.sequence_parallel)
    out += "# Tensor parallelism cuts along the sequence too, unlike in the plan: less memory.\n";
  if (strategy.zero == 1 && !piped) out += "# FSDP shards gradients too, unlike zero 1: less memory.\n";
  if (strategy.zero >= 2 && piped)
    out += text("# In a pipeline FSDP keeps whole gradients until the step ends, unlike zero ", strategy.zero, ": more memory.\n");
  if (accumulates && strategy.zero < 2)
    out += text("# Gradients are reduced after each of ", plan.micro_batches, " micro-batches, not once: more traffic.\n");
  return out;
}

void check_expressible(const plan::Plan& plan, const model::ModelSpec& model, const SharedPlan& shared) {
  const plan::Strategy& strategy = shared.strategy;
  const Where& where = plan.stages.front().where;
  const std::int64_t pieces = 2 * strategy.cp * strategy.tp;
  if (model.dim("seq") % pieces != 0)
    refuse_torchtitan(where, text("sequences of ", model.dim("seq")), text("a multiple of 2 x cp x tp = ", pieces));
  if (strategy.cp > 1 && strategy.context == model::ContextKind::ulysses)
    refuse_torchtitan(where, text("cp ", strategy.cp, " by ulysses"), "cp by ring");
  for (const plan::Padding& padding : plan::paddings(plan, model))
    refuse_torchtitan(
        where, text("tp ", strategy.tp, " does not divide ", padding.key, " ", padding.extent),
        text("a degree that divides it, or ", padding.key, " ", strategy.tp * model::shard_extent(padding.extent, strategy.tp)),
        "Tessera pads it with zeros, torchtitan does not");
  if (strategy.offload_optimizer) refuse_torchtitan(where, "the optimizer is on the host", "an optimizer on the device");
  if (model.tied_embeddings && shared.pipeline_size > 1)
    refuse_torchtitan(plan.where, "embedding and head share their weights across stages", "one stage, or tied: false");
  if (plan.precision != model::Precision::f32 && plan.precision != model::Precision::bf16)
    refuse_torchtitan(plan.where, text("it computes in ", model::name_of(plan.precision)), "fp32 or bf16");
  if (plan.precision == model::Precision::bf16 && !is_sharded(plan, shared) && (strategy.tp > 1 || shared.pipeline_size > 1))
    refuse_torchtitan(where, "bf16 with fp32 master weights, but no ranks to shard over", "dp or cp with zero 1, 2 or 3, or fp32");
}

const char* checkpoint_mode(const SharedPlan& shared) {
  if (shared.all_layers(model::Recompute::none)) return "none";
  if (shared.all_layers(model::Recompute::full)) return "full";
  const plan::StrategyRun* odd = shared.layers.front().front();
  for (const auto& stage : shared.layers)
    for (const plan::StrategyRun* run : stage)
      if (run->strategy.recompute != model::Recompute::none) odd = run;
  refuse_torchtitan(
      odd->where, text("blocks [", odd->first, ", ", odd->last, ") recompute ", model::name_of(odd->strategy.recompute), " beside others"),
      "none or full for all layers");
}

}  // namespace

void check_torchtitan_model(const model::ModelSpec& model) {
  if (!std::set<std::string>{"llama", "qwen_moe", "deepseek"}.contains(model.arch))
    refuse_torchtitan({}, "it has no models of arch " + model.arch, "llama, qwen_moe or deepseek");
}

std::string torchtitan_toml(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train) {
  check_torchtitan_model(model);
  const SharedPlan shared = shared_plan(plan, model, kTorchtitan);
  check_expressible(plan, model, shared);
  const plan::Strategy& strategy = shared.strategy;
  const bool sharded = is_sharded(plan, shared);
  const bool piped = shared.pipeline_size > 1;
  std::string out = text("# For torchtitan 0.2 on ", plan.world_size(), " processes. [model] must name a flavor of ", model.dim("layers"),
                         " layers, hidden size ", model.dim("hidden"), ", ", model.dim("heads"), " heads and a vocabulary of ",
                         model.dim("vocab"), ".\n");
  out += notes(plan, shared);
  out += text("\n[training]\nlocal_batch_size = ", shared.micro_batch_size * (piped ? plan.micro_batches : 1),
              "\nglobal_batch_size = ", plan.global_batch, "\nseq_len = ", model.dim("seq"), "\nsteps = ", train.steps,
              "\nmixed_precision_param = \"", plan.precision == model::Precision::bf16 ? "bfloat16" : "float32", "\"\n");
  const int copies = sharded ? strategy.copies() / strategy.sharded_over() : strategy.dp;
  if (strategy.dp % copies != 0)
    refuse_torchtitan(plan.stages.front().where, text("shards ", strategy.shards, " is no multiple of cp ", strategy.cp),
                      "whole context-parallel groups");
  out += text("\n[parallelism]\ndata_parallel_replicate_degree = ", copies, "\ndata_parallel_shard_degree = ", strategy.dp / copies, "\n");
  if (sharded) out += text("fsdp_reshard_after_forward = \"", strategy.zero == 3 ? "always" : "never", "\"\n");
  out += text("tensor_parallel_degree = ", strategy.tp, "\ncontext_parallel_degree = ", strategy.cp, "\n");
  if (strategy.cp > 1) out += "context_parallel_rotate_method = \"alltoall\"\n";
  if (strategy.ep > 1)
    out += text("expert_parallel_degree = ", strategy.ep, "\nexpert_tensor_parallel_degree = ", strategy.expert_tp(), "\n");
  out += text("pipeline_parallel_degree = ", shared.pipeline_size, "\n");
  if (piped)
    out +=
        text("pipeline_parallel_schedule = \"", schedule_name(plan, shared.pipeline_size),
             "\"\npipeline_parallel_microbatch_size = ", shared.micro_batch_size, "\nmodule_fqns_per_model_part = ", modules(shared), "\n");
  return out + text("\n[activation_checkpoint]\nmode = \"", checkpoint_mode(shared), "\"\n");
}

}  // namespace tessera::interop
