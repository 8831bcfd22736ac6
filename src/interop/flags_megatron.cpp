// Flags as megatron/training/arguments.py of Megatron-LM has them (main branch, August 2026).
#include <algorithm>

#include "interop/flags.hpp"
#include "interop/flags_shared.hpp"
#include "plan/tensor_cut.hpp"

namespace tessera::interop {
namespace {

using plan::option_of;
using Flags = std::vector<std::string>;
const std::string kMegatron = "Megatron-LM";

[[noreturn]] void refuse(const Where& where, const std::string& message, const std::string& expected = {}, const std::string& hint = {}) {
  refuse_for(kMegatron, where, message, expected, hint);
}

void add_gpt(Flags& flags, const model::BlockSpec& layer) {
  if (option_of(layer, "gated") != 0) refuse({}, "the model's feed-forward network is a gated GELU", "gated: false, or arch: llama");
  if (option_of(layer, "relative_bias") != 0) refuse({}, "the model's positions are alibi", "positions: learned, rotary or none");
  if (option_of(layer, "embedding_norm") != 0) refuse({}, "the model has a norm after its embedding", "embedding_norm: false");
  const auto is_bias = [](const model::ParameterSpec& parameter) { return parameter.name.ends_with(".bias"); };
  if (std::ranges::none_of(layer.parameters, is_bias)) refuse({}, "the model's LayerNorm has no biases", "biases: true");
  if (option_of(layer, "rotary") != 0)
    flags.push_back("--position-embedding-type rope");
  else if (option_of(layer, "positions") == 0)
    flags.push_back("--position-embedding-type none");
  flags.push_back(text("--max-position-embeddings ", layer.dim(option_of(layer, "positions") == 0 ? "seq" : "positions")));
}

// Of Llama 3.1 to 3.3; only the factor can be said.
void add_rope_scaling(Flags& flags, const model::BlockSpec& layer) {
  if (option_of(layer, "rope_factor") == 0) return;
  if (option_of(layer, "rope_beta_fast") != 0) refuse({}, "its rotary positions are scaled by YaRN", "rope_type: llama3, or none");
  const std::pair<const char*, double> fixed[] = {{"rope_low_freq", 1}, {"rope_high_freq", 4}, {"rope_original_seq", 8192}};
  for (const auto& [key, value] : fixed)
    if (layer.real(key) != value)
      refuse({}, "its rotary positions are scaled by other numbers than Llama 3.1's",
             "low_freq_factor 1, high_freq_factor 4, original_max_position_embeddings 8192");
  flags.insert(flags.end(), {"--use-rope-scaling", text("--rope-scaling-factor ", layer.real("rope_factor"))});
}

void add_llama(Flags& flags, const model::BlockSpec& layer) {
  const double base = layer.real("rope_theta");
  if (base != static_cast<double>(static_cast<std::int64_t>(base))) refuse({}, text("rope_theta ", base), "a whole number");
  flags.insert(flags.end(),
               {"--normalization RMSNorm", "--swiglu", "--disable-bias-linear", "--position-embedding-type rope",
                text("--rotary-base ", static_cast<std::int64_t>(base)), text("--max-position-embeddings ", layer.dim("seq"))});
  add_rope_scaling(flags, layer);
  if (option_of(layer, "qkv_bias") != 0) flags.push_back("--add-qkv-bias");
  if (option_of(layer, "qk_norm") != 0) flags.push_back("--qk-layernorm");
  // Tessera's window counts the position itself, Megatron's those before it.
  if (option_of(layer, "window") != 0) flags.push_back(text("--window-size ", layer.dim("window") - 1, ",0"));
}

void add_attention(Flags& flags, const model::BlockSpec& layer) {
  flags.push_back(text("--num-attention-heads ", layer.dim("heads")));
  if (option_of(layer, "kv_lora") != 0) {
    flags.insert(flags.end(), {"--multi-latent-attention", "--rope-type rope", "--no-rope-fusion",
                               text("--kv-lora-rank ", layer.dim("kv_lora")), text("--qk-head-dim ", layer.dim("nope_dim")),
                               text("--qk-pos-emb-head-dim ", layer.dim("rope_dim")), text("--v-head-dim ", layer.dim("v_dim"))});
    if (layer.dim("q_lora") > 0) flags.push_back(text("--q-lora-rank ", layer.dim("q_lora")));
    return;
  }
  flags.push_back(text("--kv-channels ", layer.dim("head_dim")));
  if (layer.dim("kv_heads") == layer.dim("heads")) return;
  flags.insert(flags.end(), {"--group-query-attention", text("--num-query-groups ", layer.dim("kv_heads"))});
}

// `dense` layers without experts stand before those like `layer`.
void add_experts(Flags& flags, const model::BlockSpec& layer, int dense, int routed) {
  flags.insert(flags.end(), {text("--num-experts ", layer.dim("experts")), text("--moe-router-topk ", layer.dim("experts_per_token")),
                             text("--moe-ffn-hidden-size ", layer.dim("expert_ffn")), "--moe-token-dispatcher-type alltoall"});
  if (dense > 0) flags.push_back(text("--moe-layer-freq ([0]*", dense, "+[1]*", routed, ")"));
  if (option_of(layer, "shared_ffn") != 0) flags.push_back(text("--moe-shared-expert-intermediate-size ", layer.dim("shared_ffn")));
  if (option_of(layer, "shared_gate") != 0) flags.push_back("--moe-shared-expert-gate");
}

void add_model(Flags& flags, const model::ModelSpec& model) {
  const std::vector<std::string> known = {"gpt", "llama", "mixtral", "qwen_moe", "deepseek"};
  if (std::find(known.begin(), known.end(), model.arch) == known.end())
    refuse({}, "its pretrain_gpt.py has no models of arch " + model.arch, "gpt, llama, mixtral, qwen_moe or deepseek");
  const model::Repeat& first = model.repeats[1];
  const model::Repeat& last = model.repeats[model.repeats.size() - 2];
  const model::BlockSpec& layer = first.block;
  const bool dense = option_of(layer, "experts") == 0;
  flags.insert(flags.end(), {text("--num-layers ", model.dim("layers")), text("--hidden-size ", layer.dim("hidden")),
                             text("--ffn-hidden-size ", layer.dim(dense ? "ffn" : "expert_ffn")), text("--seq-length ", layer.dim("seq")),
                             text("--norm-epsilon ", layer.real("norm_eps"))});
  add_attention(flags, layer);
  (model.arch == "gpt" ? add_gpt : add_llama)(flags, layer);
  if (option_of(last.block, "experts") != 0) add_experts(flags, last.block, dense ? first.count : 0, last.count);
  for (const char* flag : {"--hidden-dropout ", "--attention-dropout "}) flags.push_back(text(flag, option_of(layer, "dropout")));
  if (option_of(layer, "attention_fused", 1) == 0) flags.push_back("--attention-backend unfused");
  if (!model.tied_embeddings) flags.push_back("--untie-embeddings-and-output-weights");
}

void add_precision(Flags& flags, model::Precision precision) {
  switch (precision) {
    case model::Precision::f32: return;
    case model::Precision::f16: flags.push_back("--fp16"); return;
    case model::Precision::f8: flags.push_back("--fp8-format hybrid"); [[fallthrough]];
    case model::Precision::bf16: flags.push_back("--bf16");
  }
}

void add_pipeline(Flags& flags, const plan::Plan& plan, const SharedPlan& shared) {
  if (shared.pipeline_size == 1) return;
  flags.push_back(text("--pipeline-model-parallel-size ", shared.pipeline_size));
  if (plan.schedule != plan::Schedule::one_f_one_b && plan.schedule != plan::Schedule::interleaved)
    refuse(plan.where, text("its schedule is ", name_of(plan.schedule)), "1f1b or interleaved", "plan with parallel: {schedule: 1f1b}");
  if (shared.chunks > 1 && plan.micro_batches % shared.pipeline_size != 0)
    refuse(plan.where, text(plan.micro_batches, " micro-batches in groups of ", shared.pipeline_size, " stages"),
           text("with interleaved stages, a multiple of ", shared.pipeline_size));
  const auto equal = [&](const auto& stage) { return stage.size() == shared.layers.front().size(); };
  if (!std::ranges::all_of(shared.layers, equal)) {
    std::string layout;  // "Ettt|ttttL": embedding, layers, loss
    for (const auto& stage : shared.layers) layout += (layout.empty() ? "E" : "|") + std::string(stage.size(), 't');
    flags.push_back("--pipeline-model-parallel-layout " + layout + "L");
  } else if (shared.chunks > 1) {
    flags.push_back(text("--num-virtual-stages-per-pipeline-rank ", shared.chunks));
  }
}

void add_data_parallel(Flags& flags, const plan::Plan& plan, const plan::Strategy& strategy) {
  const bool several = strategy.dp * strategy.cp > 1;
  if (several && strategy.zero < 2)
    flags.insert(flags.end(), {"--overlap-grad-reduce", text("--ddp-bucket-size ", std::max<std::int64_t>(1, plan.bucket_size.value / 4))});
  if (strategy.zero == 1 || strategy.offload_optimizer) flags.push_back("--use-distributed-optimizer");
  if (strategy.zero >= 2)
    flags.insert(flags.end(), {"--use-megatron-fsdp",
                               text("--data-parallel-sharding-strategy ", strategy.zero == 2 ? "optim_grads" : "optim_grads_params"),
                               "--ckpt-format fsdp_dtensor"});
  if (strategy.sharded_over() > 1 && strategy.sharded_over() < strategy.copies()) {
    flags.push_back(text("--num-distributed-optimizer-instances ", strategy.copies() / strategy.shards));
    if (strategy.zero >= 2) flags.push_back("--outer-dp-sharding-strategy no_shard");
  }
  if (!strategy.offload_optimizer) return;
  if (several && strategy.zero == 0) refuse(plan.stages.front().where, "the optimizer is on the host and not sharded", "zero 1");
  flags.insert(flags.end(), {"--optimizer-cpu-offload", "--use-precision-aware-optimizer"});
}

void add_parallel(Flags& flags, const plan::Plan& plan, const model::ModelSpec& model, const SharedPlan& shared) {
  const plan::Strategy& strategy = shared.strategy;
  const Where& where = plan.stages.front().where;
  const std::int64_t seq = model.dim("seq");
  if (strategy.cp > 1 && seq % (2 * strategy.cp) != 0)
    refuse(where, text("sequences of ", seq, " for cp ", strategy.cp), text("a multiple of 2 x cp = ", 2 * strategy.cp));
  if (strategy.sequence_parallel && seq % (strategy.cp * strategy.tp) != 0)
    refuse(where, text("sequences of ", seq, " for sequence parallelism of ", strategy.cp * strategy.tp),
           text("a multiple of ", strategy.cp * strategy.tp));
  // It pads the vocabulary by itself, to a multiple of tp x --make-vocab-size-divisible-by.
  for (const plan::Padding& padding : plan::paddings(plan, model))
    if (padding.key != "vocab")
      refuse(where, text("tp ", strategy.tp, " does not divide ", padding.key, " ", padding.extent),
             text("a degree that divides it, or a width of ", strategy.tp * model::shard_extent(padding.extent, strategy.tp)),
             "Tessera pads the width of a feed-forward network with zeros, Megatron-LM the vocabulary alone");
  if (strategy.tp > 1) flags.push_back(text("--tensor-model-parallel-size ", strategy.tp));
  if (strategy.sequence_parallel) flags.push_back("--sequence-parallel");
  if (strategy.tp > 1 && !strategy.sequence_parallel && option_of(model.repeats[model.repeats.size() - 2].block, "experts") != 0)
    refuse(where, text("experts with tp ", strategy.tp, " but no sequence parallelism"), "tp 1, or sequence parallelism");
  if (strategy.cp > 1)
    flags.insert(flags.end(), {text("--context-parallel-size ", strategy.cp),
                               text("--cp-comm-type ", strategy.context == model::ContextKind::ring ? "p2p" : "a2a")});
  if (strategy.ep > 1) flags.push_back(text("--expert-model-parallel-size ", strategy.ep));
  if (strategy.whole_experts) flags.push_back("--expert-tensor-parallel-size 1");
  add_pipeline(flags, plan, shared);
  add_data_parallel(flags, plan, strategy);
}

// Megatron recomputes all layers, or the first so many of each stage.
void add_recompute(Flags& flags, const SharedPlan& shared) {
  using model::Recompute;
  if (shared.all_layers(Recompute::none)) return;
  if (shared.all_layers(Recompute::selective)) {
    flags.insert(flags.end(), {"--recompute-granularity selective", "--recompute-modules core_attn"});
    return;
  }
  flags.push_back("--recompute-granularity full");
  if (shared.all_layers(Recompute::full)) {
    flags.insert(flags.end(), {"--recompute-method uniform", "--recompute-num-layers 1"});
    return;
  }
  const auto is_full = [](const plan::StrategyRun* run) { return run->strategy.recompute == Recompute::full; };
  std::ptrdiff_t first = 0;
  for (const auto& stage : shared.layers) first = std::max(first, std::find_if_not(stage.begin(), stage.end(), is_full) - stage.begin());
  for (const auto& stage : shared.layers)
    for (std::ptrdiff_t layer = 0; layer < std::ssize(stage); ++layer) {
      const plan::StrategyRun& run = *stage[layer];
      if (run.strategy.recompute != (layer < first ? Recompute::full : Recompute::none))
        refuse(run.where,
               text("blocks [", run.first, ", ", run.last, ") recompute ", model::name_of(run.strategy.recompute), ", and others do not"),
               "full recomputation of the first layers of each stage, as many in all stages, or one kind for all layers");
    }
  flags.insert(flags.end(), {"--recompute-method block", text("--recompute-num-layers ", first)});
}

}  // namespace

void check_megatron_model(const model::ModelSpec& model) {
  Flags flags;
  add_model(flags, model);
}

std::string megatron_flags(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train) {
  Flags flags;
  add_model(flags, model);
  const SharedPlan shared = shared_plan(plan, model, kMegatron);
  flags.insert(flags.end(), {text("--micro-batch-size ", shared.micro_batch_size), text("--global-batch-size ", plan.global_batch),
                             text("--train-iters ", train.steps)});
  add_precision(flags, plan.precision);
  add_parallel(flags, plan, model, shared);
  add_recompute(flags, shared);
  std::string out;
  for (const std::string& flag : flags) out += flag + "\n";
  return out;
}

}  // namespace tessera::interop
