#include "cost/uniform.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/expect_error.hpp"

namespace tessera::cost {
namespace {

using testing::error_of;

constexpr double kGibibyte = 1024.0 * 1024 * 1024;

Transformer gpt_22b() {
  Transformer shape;
  shape.layers = 48;
  shape.hidden = 6144;
  shape.heads = shape.kv_heads = 64;
  shape.head_dim = 96;
  shape.ffn = 24576;
  shape.vocab = 51200;
  shape.seq = 2048;
  shape.gated = shape.rotary = false;
  return shape;
}

cluster::ResourceGroup selene(int nodes) {
  cluster::ResourceGroup group;
  group.name = "selene";
  group.device = cluster::known_device("a100-80");
  group.nodes = nodes;
  group.devices_per_node = 8;
  group.inside = {"nvlink", BytesPerSecond(300e9), Seconds(0), false};
  group.network = {"ib", BytesPerSecond(25e9), Seconds(0), true};
  group.adapters = 8;
  return group;
}

profile::Calibration megatron() { return profile::calibration_for("a100-80", "megatron-2022"); }

UniformPlan any_plan() {
  UniformPlan plan;
  plan.tp = 1 << *rc::gen::inRange(0, 4);
  plan.pp = 1 << *rc::gen::inRange(0, 4);
  plan.dp = 1 << *rc::gen::inRange(0, 4);
  plan.micro_batch = 1 << *rc::gen::inRange(0, 3);
  plan.global_batch = plan.micro_batch * plan.dp * plan.pp * (1 << *rc::gen::inRange(0, 3));
  plan.sequence_parallel = *rc::gen::arbitrary<bool>();
  plan.zero = *rc::gen::inRange(0, 4);
  plan.again = *rc::gen::element(Again::nothing, Again::attention, Again::half, Again::layer);
  plan.schedule = *rc::gen::element(plan::Schedule::one_f_one_b, plan::Schedule::gpipe, plan::Schedule::interleaved, plan::Schedule::zb_h1,
                                    plan::Schedule::zb_h2, plan::Schedule::zb_v);
  if (plan.schedule == plan::Schedule::interleaved) plan.chunks = 3;
  return plan;
}

TEST(Uniform, NamedTermsSumToTheStep) {
  EXPECT_TRUE(rc::check([] {
    const UniformPrice priced = price(any_plan(), gpt_22b(), selene(64), megatron());
    double sum = 0;
    for (const auto& [name, seconds] : priced.terms()) {
      RC_ASSERT(seconds >= 0);
      sum += seconds;
    }
    RC_ASSERT(std::abs(sum - priced.step) < 1e-9 * priced.step);
  }));
}

TEST(Uniform, EqualStagesIdleAsTheirSchedulesSay) {
  Transformer shape = gpt_22b();
  shape.vocab = 64;  // embedding and head next to nothing
  profile::Calibration calibration = megatron();
  calibration.latency = calibration.launch = 0;
  calibration.pipeline_exposed = 0;
  UniformPlan plan;
  plan.pp = 8;
  plan.micro_batch = 4;
  plan.global_batch = 4 * 16;
  const auto idle = [&](plan::Schedule schedule, int chunks) {
    plan.schedule = schedule;
    plan.chunks = chunks;
    const UniformPrice priced = price(plan, shape, selene(1), calibration);
    const double busy = priced.forward.total() + priced.backward.total() + priced.again.total();
    return priced.bubble / busy;
  };
  // (p - 1) / m of 1F1B and GPipe; a chunk's share of that when interleaved (Narayanan et al. 2021, section 2.2).
  EXPECT_NEAR(idle(plan::Schedule::one_f_one_b, 1), 7.0 / 16, 0.01);
  EXPECT_NEAR(idle(plan::Schedule::gpipe, 1), 7.0 / 16, 0.01);
  EXPECT_NEAR(idle(plan::Schedule::interleaved, 6), 7.0 / 6 / 16, 0.01);
  EXPECT_LT(idle(plan::Schedule::zb_h1, 1), idle(plan::Schedule::one_f_one_b, 1));
  EXPECT_LT(idle(plan::Schedule::zb_h2, 1), idle(plan::Schedule::zb_h1, 1));
  EXPECT_LE(idle(plan::Schedule::zb_v, 1), idle(plan::Schedule::zb_h2, 1));
}

TEST(Uniform, RecomputationTradesTimeForMemory) {
  EXPECT_TRUE(rc::check([] {
    UniformPlan plan = any_plan();
    double last_time = 0;
    double last_bytes = 1e30;
    for (const Again again : {Again::nothing, Again::attention, Again::layer}) {
      plan.again = again;
      const double time = price(plan, gpt_22b(), selene(64), megatron()).step;
      const double bytes = memory_of(plan, gpt_22b(), megatron(), 0).activations;
      // Equal, to rounding, where an exchange takes longer than all computing beside it.
      RC_ASSERT(time >= last_time * (1 - 1e-12));
      RC_ASSERT(bytes <= last_bytes);
      last_time = time;
      last_bytes = bytes;
    }
  }));
}

TEST(Uniform, ActivationsAreThoseOfKorthikanti) {
  const Transformer shape = gpt_22b();
  UniformPlan plan;
  plan.tp = 8;
  plan.micro_batch = 4;
  plan.global_batch = 4;
  const double unit = 2048.0 * 4 * 6144;
  const double scores = 5.0 * 64 * 2048 / 6144;
  const auto layer = [&] { return memory_of(plan, shape, megatron(), 0).activations / 48 / unit; };
  EXPECT_NEAR(layer(), 10 + 24.0 / 8 + scores / 8, 1e-9);  // equation 2
  plan.sequence_parallel = true;
  EXPECT_NEAR(layer(), 34.0 / 8 + scores / 8, 1e-9);  // equation 4
  plan.again = Again::attention;
  EXPECT_NEAR(layer(), 34.0 / 8, 1e-9);  // equation 6
  plan.sequence_parallel = false;
  plan.again = Again::layer;
  EXPECT_NEAR(layer(), 2, 1e-9);
}

TEST(Uniform, StateIsEighteenBytesAParameterAndZeroSharesIt) {
  UniformPlan plan;
  plan.tp = 8;
  plan.dp = 4;
  plan.global_batch = 4;
  const auto state = [&] {
    const UniformMemory memory = memory_of(plan, gpt_22b(), megatron(), 0);
    return memory.weights + memory.gradients + memory.optimizer;
  };
  const double parameters = 48 * 12.0 * 6144 * 6144 / 8;
  EXPECT_NEAR(state() / kGibibyte, 18 * parameters / kGibibyte, 1e-6);
  plan.zero = 1;
  EXPECT_NEAR(state(), (6 + 12.0 / 4) * parameters, 1);
  plan.zero = 2;
  EXPECT_NEAR(state(), (2 + 16.0 / 4) * parameters, 1);
  plan.zero = 3;
  EXPECT_NEAR(state(), 18.0 / 4 * parameters, 1);
}

TEST(Uniform, AFirstStageHoldsMoreWhenInterleaved) {
  UniformPlan plan;
  plan.pp = 8;
  plan.global_batch = 64;
  const double plain = memory_of(plan, gpt_22b(), megatron(), 0).activations;
  plan.schedule = plan::Schedule::interleaved;
  plan.chunks = 3;
  EXPECT_NEAR(memory_of(plan, gpt_22b(), megatron(), 0).activations / plain, 1 + 7.0 / (8 * 3), 1e-9);
}

TEST(Uniform, ExpertsAreExchangedAndSharded) {
  Transformer shape = gpt_22b();
  shape.experts = {64, 4, 1536, 0, 0};
  UniformPlan plan;
  plan.dp = 16;
  plan.global_batch = 16;
  const UniformPrice alone = price(plan, shape, selene(2), megatron());
  const UniformMemory whole = memory_of(plan, shape, megatron(), 0);
  plan.ep = 16;
  const UniformPrice spread = price(plan, shape, selene(2), megatron());
  EXPECT_EQ(alone.forward.expert_exchange, 0);
  EXPECT_GT(spread.forward.expert_exchange, 0);
  EXPECT_LT(memory_of(plan, shape, megatron(), 0).weights, whole.weights);
}

TEST(Uniform, FrozenWeightsHaveNoGradients) {
  UniformPlan plan;
  plan.dp = 8;
  plan.global_batch = 8;
  const UniformPrice trained = price(plan, gpt_22b(), selene(1), megatron());
  plan.frozen = true;
  const UniformPrice frozen = price(plan, gpt_22b(), selene(1), megatron());
  EXPECT_NEAR(frozen.backward.products, trained.backward.products / 2, 0.15 * trained.backward.products);
  EXPECT_LT(frozen.gradients, 0.1 * trained.gradients);
}

TEST(Uniform, RefusesWhatCannotBe) {
  UniformPlan plan;
  plan.tp = 8;
  plan.dp = 2;
  EXPECT_EQ(error_of([&] { price(plan, gpt_22b(), selene(1), megatron()); }).code(), ErrorCode::invalid_config);
  plan.dp = 1;
  plan.format = profile::Format::fp8;
  EXPECT_EQ(error_of([&] { price(plan, gpt_22b(), selene(1), megatron()); }).code(), ErrorCode::not_found);
  Transformer empty = gpt_22b();
  empty.seq = 0;
  EXPECT_EQ(error_of([&] { price(UniformPlan{}, empty, selene(1), megatron()); }).code(), ErrorCode::invalid_config);
  plan.pp = 49;
  EXPECT_EQ(error_of([&] { stage_layers(plan, gpt_22b()); }).code(), ErrorCode::invalid_config);
}

TEST(Uniform, ReadsATransformerFromAModel) {
  const model::ModelSpec model = model::read_model(
      ConfigNode::parse("{arch: llama, hidden: 4096, layers: 32, heads: 32, kv_heads: 8, ffn: 14336, seq: 8192, vocab: 128256}", "m.yaml"));
  const Transformer shape = transformer_of(model);
  EXPECT_EQ(shape.head_dim, 128);
  // Without the norms, a two-thousandth of a percent.
  EXPECT_NEAR(shape.parameters() / static_cast<double>(model.parameter_count()), 1, 1e-4);
  UniformPlan plan;
  plan.dp = 8;
  plan.global_batch = 8;
  cluster::ClusterSpec cluster;
  cluster.groups.push_back(selene(1));
  EXPECT_EQ(price(plan, model, cluster, megatron()).step, price(plan, shape, selene(1), megatron()).step);
}

}  // namespace
}  // namespace tessera::cost
