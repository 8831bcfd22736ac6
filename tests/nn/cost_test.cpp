// What the planner believes of a block against what torch counts and what the allocator sees.
#include <ATen/ATen.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/folders.hpp"
#include "nn/decoder_helper.hpp"
#include "nn/kernels/gemm_avx512.hpp"
#include "nn/memory_helper.hpp"

namespace tessera::nn::test {
namespace {

using model::Precision;

struct Case {
  Dims dims;
  std::int64_t samples;
};
const std::vector<Case> kCases = {
    {{.hidden = 256, .layers = 4, .heads = 4, .kv_heads = 2, .ffn = 704, .vocab = 4096, .seq = 128}, 4},
    {{.hidden = 384, .layers = 6, .heads = 6, .kv_heads = 2, .ffn = 1024, .vocab = 8192, .seq = 256}, 2},
    {{.hidden = 512, .layers = 2, .heads = 8, .kv_heads = 8, .ffn = 512, .vocab = 1000, .seq = 256}, 4},
    {{.hidden = 192, .layers = 8, .heads = 3, .kv_heads = 1, .ffn = 1536, .vocab = 512, .seq = 512}, 1},
    {{.hidden = 256, .layers = 4, .heads = 4, .kv_heads = 2, .ffn = 704, .vocab = 1000, .seq = 128, .qkv_bias = true, .scaled = true}, 4},
    {{.hidden = 256, .layers = 4, .heads = 4, .kv_heads = 2, .ffn = 704, .vocab = 1000, .seq = 128, .head_dim = 128, .qk_norm = true}, 4},
    {{.hidden = 256, .layers = 4, .heads = 8, .kv_heads = 8, .ffn = 384, .vocab = 1000, .seq = 256, .window = 50, .qk_norm = true}, 2},
    {{.hidden = 256, .layers = 4, .heads = 4, .kv_heads = 4, .ffn = 1024, .vocab = 1000, .seq = 128, .tied = true, .gpt = true}, 4},
    {{.hidden = 256, .layers = 4, .heads = 4, .kv_heads = 4, .ffn = 1024, .vocab = 1000, .seq = 128, .dropout = 0.1, .bert = true}, 4},
    {{.hidden = 256, .layers = 2, .heads = 4, .kv_heads = 4, .ffn = 704, .vocab = 4096, .seq = 128, .tied = true, .bert = true}, 4},
    {{.hidden = 256, .layers = 3, .heads = 4, .kv_heads = 4, .ffn = 704, .vocab = 1000, .seq = 128, .bert = true, .split = true}, 4},
    {{.hidden = 256,
      .layers = 4,
      .heads = 4,
      .kv_heads = 4,
      .ffn = 1024,
      .vocab = 1000,
      .seq = 128,
      .dropout = 0.1,
      .bert = true,
      .split = true},
     4},
    {{.hidden = 256,
      .layers = 4,
      .heads = 4,
      .kv_heads = 2,
      .ffn = 704,
      .vocab = 1000,
      .seq = 128,
      .dropout = 0.1,
      .gpt = true,
      .gated = true,
      .embedding_norm = true,
      .positions = "rotary"},
     4},
};

TEST(Costs, PeakOfAStepIsWithinTenPercentOfWhatIsAllocated) {
  for (const auto& [dims, samples] : kCases) {
    const model::ModelSpec spec = decoder(dims);
    const auto whole = whole_parameters(spec, 1);
    Batch batch = random_batch(dims, samples, 1);
    batch.tensors["targets"] = batch.at("tokens");  // all count
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::selective, model::Recompute::full}) {
        Model model(spec, whole, precision);
        Pass pass;
        pass.batch = &batch;
        pass.precision = precision;
        pass.drops = true;
        pass.recompute_attention = recompute == model::Recompute::selective;
        auto meter = std::make_shared<MemoryMeter>();
        {
          c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
          model.step(pass, recompute == model::Recompute::full);
        }
        const double expected = static_cast<double>(expected_peak(spec, {samples, 1, precision, recompute}));
        // Without the instructions that ours needs ATen's attention runs, with some buffers of its own whatever the model.
        const double buffers = (precision == Precision::bf16 ? kernels::has_avx512_bf16() : kernels::has_avx512()) ? 0 : 5e6;
        EXPECT_NEAR(static_cast<double>(meter->peak()), expected, 0.1 * expected + buffers)
            << "hidden " << dims.hidden << ", " << model::name_of(precision) << ", recompute " << model::name_of(recompute);
        EXPECT_EQ(meter->held(), 0) << "something is left after the step";
      }
    }
  }
}

TEST(Costs, WhatALayerKeepsIsExact) {
  for (const auto& [dims, samples] : kCases) {
    const model::ModelSpec spec = decoder(dims);
    const auto whole = whole_parameters(spec, 1);
    const Batch batch = random_batch(dims, samples, 1);
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      Model model(spec, whole, precision);
      Pass pass;
      pass.batch = &batch;
      pass.precision = precision;
      pass.drops = true;
      Saved first;
      const Tensors hidden = model.block(0).forward({}, first, pass);
      // Of split layers, both halves.
      for (const auto& [block, recompute] :
           {std::pair{1, model::Recompute::none}, {1, model::Recompute::selective}, {dims.split ? 2 : 1, model::Recompute::none}}) {
        pass.recompute_attention = recompute == model::Recompute::selective;
        auto meter = std::make_shared<MemoryMeter>();
        c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
        Saved saved;
        const auto index = static_cast<std::size_t>(block);
        const Tensors out = model.block(index).forward(hidden, saved, pass);
        const model::BlockCost cost = model::cost_of(*spec.blocks()[index].spec, {samples, 1, precision, recompute});
        // The layer's input is kept too, but was allocated by the block before it.
        EXPECT_EQ(meter->held() + static_cast<std::int64_t>(hidden[0].nbytes()), cost.saved.value + cost.output.value);
        EXPECT_EQ(static_cast<std::int64_t>(out[0].nbytes()), cost.output.value);
      }
    }
  }
}

// Of latent attention, some of it by autograd.
TEST(Costs, WhatALayerWithLatentAttentionKeepsIsAsSaid) {
  for (const char* q_lora : {"0", "48"}) {
    const model::ModelSpec spec =
        model::read_model(ConfigNode::parse(text("{arch: deepseek, hidden: 128, layers: 1, heads: 4, q_lora: ", q_lora,
                                                 ", kv_lora: 32, nope_dim: 24, rope_dim: 8, v_dim: 20, ffn: 352, dense_layers: 1, experts: "
                                                 "4, experts_per_token: 2, expert_ffn: 96, "
                                                 "seq: 64, vocab: 512}"),
                                            "latent.yaml"));
    const auto whole = whole_parameters(spec, 1);
    for (const Precision precision : {Precision::f32, Precision::bf16}) {
      Model model(spec, whole, precision);
      const Batch batch;
      Pass pass;
      pass.batch = &batch;
      pass.precision = precision;
      const at::Tensor hidden = at::randn({3, 64, 128}).to(precision == Precision::f32 ? at::kFloat : at::kBFloat16);
      for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::selective}) {
        pass.recompute_attention = recompute == model::Recompute::selective;
        auto meter = std::make_shared<MemoryMeter>();
        c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
        Saved saved;
        const Tensors out = model.block(1).forward({hidden}, saved, pass);
        const model::BlockCost cost = model::cost_of(spec.repeats[1].block, {3, 1, precision, recompute});
        const auto expected = static_cast<double>(cost.saved.value + cost.output.value);
        EXPECT_NEAR(static_cast<double>(meter->held()) + static_cast<double>(hidden.nbytes()), expected, 0.02 * expected)
            << "q_lora " << q_lora << ", " << model::name_of(precision) << ", recompute " << model::name_of(recompute);
      }
    }
  }
}

TEST(Costs, ARankOfFourKeepsItsShareOfHeadsAndColumns) {
  const Dims dims{.hidden = 256, .layers = 1, .heads = 4, .kv_heads = 4, .ffn = 704, .vocab = 4096, .seq = 128};
  const model::ModelSpec spec = decoder(dims);
  const model::BlockSpec& layer = spec.repeats[1].block;
  const BlockPlacement placement{1, 4};
  Model model(spec, whole_parameters(spec, 1), Precision::f32, placement);
  const Batch batch;
  Pass pass;  // without a group the partial sums stay partial; sizes are what they are
  pass.batch = &batch;
  pass.training = true;
  const at::Tensor hidden = at::randn({2, dims.seq, dims.hidden});
  auto meter = std::make_shared<MemoryMeter>();
  c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
  Saved saved;
  Tensors out = model.block(1).forward({hidden}, saved, pass);
  const model::BlockCost cost = model::cost_of(layer, {2, 4, Precision::f32, model::Recompute::none});
  EXPECT_EQ(meter->held() + static_cast<std::int64_t>(hidden.nbytes()), cost.saved.value + cost.output.value);
  EXPECT_EQ(cost.forward_all_reduces, 2);
  EXPECT_EQ(cost.all_reduce_size.value, static_cast<std::int64_t>(out[0].nbytes()));
}

nlohmann::json count_with_torch(const Dims& d, std::int64_t samples) {
  const std::string command =
      text(kSourceFolder, "/.venv/bin/python ", kSourceFolder, "/tests/nn/count_with_torch.py ", d.hidden, " ", d.layers, " ", d.heads, " ",
           d.kv_heads, " ", d.ffn, " ", d.vocab, " ", d.seq, " ", samples, " ", d.tied ? 1 : 0);
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[256];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) output += buffer;
  const int status = pipe == nullptr ? -1 : pclose(pipe);
  if (status != 0) throw Error(ErrorCode::internal, text("the reference count failed with status ", status, ": ", output));
  return nlohmann::json::parse(output);
}

TEST(Costs, ParametersAndFlopsAreWhatTorchCountsOfTransformersLlama) {
  for (const auto& [dims, samples] : {kCases[0], kCases[3], Case{{.tied = true}, 2}}) {
    const model::ModelSpec spec = decoder(dims);
    double forward = 0;
    double backward = 0;
    for (const model::BlockInstance& instance : spec.blocks()) {
      const model::BlockCost cost = model::cost_of(*instance.spec, {samples, 1, Precision::f32, model::Recompute::none});
      forward += cost.forward.value;
      backward += cost.backward.value;
    }
    const nlohmann::json counted = count_with_torch(dims, samples);
    EXPECT_EQ(spec.parameter_count(), counted.at("parameters").get<std::int64_t>());
    EXPECT_NEAR(forward, counted.at("forward").get<double>(), 0.01 * forward);
    EXPECT_NEAR(backward, counted.at("backward").get<double>(), 0.01 * backward);
    EXPECT_NEAR(model::training_flops_per_sample(spec).value * static_cast<double>(samples), forward + backward, 1e-9 * forward);
  }
}

}  // namespace
}  // namespace tessera::nn::test
