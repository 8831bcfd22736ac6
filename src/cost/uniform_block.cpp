#include "cost/uniform_parts.hpp"

namespace tessera::cost {

using profile::Format;

LayerTime block_time(const Pricing& pricing, const model::BlockSpec& block) {
  const UniformPlan& plan = pricing.plan;
  Stack stack;
  stack.compiled = plan.compiled;
  stack.hides_tensor = plan.hide_tensor;
  stack.row_scales = plan.row_scales;
  stack.selective_is_half = plan.again == Again::half;
  stack.frozen = plan.frozen;
  model::BlockShard shard = shard_of(plan);
  if (plan.again == Again::half) shard.recompute = model::Recompute::selective;
  return block_time(shard, stack, pricing.kernels, pricing.exchanges, block);
}

model::BlockShard shard_of(const UniformPlan& plan) {
  model::BlockShard shard;
  shard.micro_batch = plan.micro_batch;
  shard.tensor_parallel = plan.tp;
  shard.precision = plan.format == Format::bf16 ? model::Precision::bf16 : model::Precision::f8;
  shard.recompute = plan.again == Again::layer       ? model::Recompute::full
                    : plan.again == Again::attention ? model::Recompute::selective
                                                     : model::Recompute::none;
  shard.sequence_parallel = plan.sequence_parallel && plan.tp > 1;
  shard.context_parallel = plan.cp;
  shard.context = plan.context;
  shard.expert_parallel = plan.ep;
  return shard;
}

Blocks blocks_of(const Transformer& model, const profile::Calibration& calibration) {
  const auto real = [](auto value) { return static_cast<double>(value); };
  Blocks out;
  out.embedding.kind = "embedding";
  out.embedding.dims = {
      {"hidden", real(model.hidden)}, {"vocab", real(model.vocab)}, {"seq", real(model.seq)}, {"dropout", calibration.dropout ? 1 : 0}};
  out.head.kind = "lm_head";
  out.head.dims = {{"hidden", real(model.hidden)}, {"vocab", real(model.vocab)}, {"seq", real(model.seq)}, {"autograd", 1}};
  out.plain.kind = "encoder_layer";
  out.plain.dims = {{"hidden", real(model.hidden)},
                    {"heads", real(model.heads)},
                    {"kv_heads", real(model.kv_heads)},
                    {"head_dim", real(model.head_dim)},
                    {"ffn", real(model.ffn)},
                    {"seq", real(model.seq)},
                    {"gated", model.gated ? 1 : 0},
                    {"rotary", model.rotary ? 1 : 0},
                    {"attention_fused", calibration.attention == profile::AttentionKernel::fused ? 1 : 0},
                    {"dropout", calibration.dropout ? 1 : 0},
                    {"autograd", 1}};
  if (model.latent.key_value_rank > 0) {
    out.plain.dims["kv_lora"] = real(model.latent.key_value_rank);
    out.plain.dims["q_lora"] = real(model.latent.query_rank);
    out.plain.dims["nope_dim"] = real(model.latent.plain);
    out.plain.dims["rope_dim"] = real(model.latent.rotary);
    out.plain.dims["v_dim"] = real(model.latent.value);
  }
  if (model.experts.count > 0) {
    out.routed = out.plain;
    out.routed.kind = "moe_layer";
    out.routed.dims["experts"] = real(model.experts.count);
    out.routed.dims["experts_per_token"] = real(model.experts.chosen);
    out.routed.dims["expert_ffn"] = real(model.experts.ffn);
    out.routed.dims["shared_ffn"] = real(model.experts.shared_ffn);
  }
  return out;
}

}  // namespace tessera::cost
