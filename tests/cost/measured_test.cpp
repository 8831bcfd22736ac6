// The cost model where a profile or a roofline says the times.
#include "cost/cost.hpp"
#include "cost/cost_model.hpp"

#include <gtest/gtest.h>

#include "base/expect_error.hpp"
#include "plan/plan_helper.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::cost {
namespace {

using tessera::testing::error_of;

profile::BlockSample sample_of(const std::string& kind, int tensor_parallel, double forward, double backward) {
  profile::BlockSample sample;
  sample.kind = kind;
  sample.tensor_parallel = tensor_parallel;
  sample.threads = 2;
  sample.neighbours = 2;
  sample.forward = Seconds(forward);
  sample.backward = Seconds(backward);
  return sample;
}

struct Workers {
  model::JobSpec job = plan::job_of({.layers = 4, .hidden = 256, .global_batch = 8});
  cluster::ClusterSpec cluster = plan::cpu_cluster(4);
  profile::Profile profile;
  // Two workers of two threads on each host.
  StageDevices devices{{{0, 0, 0, 2, 2}}};

  Workers() {
    for (const model::Repeat& repeat : job.model.repeats) profile.blocks.push_back(sample_of(repeat.block.kind, 1, 3e-3, 5e-3));
    profile.blocks.push_back(sample_of("transformer_layer", 2, 2e-3, 4e-3));
  }
};

plan::Plan pipeline_of_two(const model::JobSpec& job, std::int64_t micro_batches) {
  plan::Plan plan;
  plan.global_batch = job.train.global_batch;
  plan.micro_batches = micro_batches;
  plan.ranks = {{0, 0, 0, 2}, {0, 0, 1, 2}};
  plan.stages = {{{0}, {{0, 3, {}}}}, {{1}, {{3, job.model.block_count(), {}}}}};
  return plan;
}

TEST(Measured, PassesOfAWorkerTakeWhatTheProfileSays) {
  const Workers c;
  CostModel cost_model(c.job.model, c.job.train, c.cluster, c.profile);
  const int devices = cost_model.add(c.devices);
  const BlockLoad plain = cost_model.block(1, devices, {}, 1);
  EXPECT_DOUBLE_EQ(plain.forward, 3e-3);
  EXPECT_DOUBLE_EQ(plain.backward(), 5e-3);
  const BlockLoad again = cost_model.block(1, devices, {.recompute = model::Recompute::full}, 1);
  EXPECT_DOUBLE_EQ(again.backward(), 5e-3 + 3e-3);
  EXPECT_DOUBLE_EQ(again.again, 3e-3);
  EXPECT_LT(again.saved, plain.saved);
  // The program never repeats the model's first and last block.
  const int last = static_cast<int>(c.job.model.repeats.size()) - 1;
  for (const int end : {0, last})
    EXPECT_EQ(cost_model.block(end, devices, {.recompute = model::Recompute::full}, 1).backward(),
              cost_model.block(end, devices, {}, 1).backward());
}

TEST(Measured, ExchangesStandBesideThePassesForAClock) {
  const Workers c;
  CostModel cost_model(c.job.model, c.job.train, c.cluster, c.profile);
  const int devices = cost_model.add(c.devices);
  EXPECT_TRUE(cost_model.plays_exchanges(devices));
  const BlockLoad load = cost_model.block(1, devices, {.tp = 2, .recompute = model::Recompute::full}, 1);
  const model::BlockCost cost = model::cost_of(c.job.model.repeats[1].block, {.tensor_parallel = 2});
  EXPECT_EQ(std::ssize(load.forward_played), cost.forward_all_reduces);
  EXPECT_EQ(std::ssize(load.backward_played), cost.backward_all_reduces + cost.forward_all_reduces);
  EXPECT_EQ(load.backward_played.front().bytes, cost.all_reduce_size);
  EXPECT_NEAR(load.forward - load.forward_exchange, 2e-3, 1e-12);
  EXPECT_NEAR(load.backward() - load.backward_exchange, 4e-3 + 2e-3, 1e-12);
  EXPECT_NEAR(load.forward_exchange,
              cost.forward_all_reduces * cost_model.exchange("all_reduce", cost.all_reduce_size.value, 2, c.cluster.groups[0].inside),
              1e-12);
  const auto accelerators = plan::gpu_cluster(1, 2);
  EXPECT_FALSE(CostModel(c.job.model, accelerators, model::Precision::bf16).plays_exchanges(0));
  EXPECT_TRUE(CostModel(c.job.model, accelerators, model::Precision::f32).plays_exchanges(0));
}

TEST(Measured, AttentionThatIsComputedAgainTakesItsShareOfTheForwardPass) {
  const Workers c;
  CostModel cost_model(c.job.model, c.job.train, c.cluster, c.profile);
  const int devices = cost_model.add(c.devices);
  const BlockLoad plain = cost_model.block(1, devices, {}, 1);
  const BlockLoad again = cost_model.block(1, devices, {.recompute = model::Recompute::selective}, 1);
  EXPECT_GT(again.again, 0);
  EXPECT_LT(again.again, 0.5 * plain.forward);
  EXPECT_DOUBLE_EQ(again.backward(), plain.backward() + again.again);
  EXPECT_LT(again.saved, plain.saved);
}

TEST(Measured, SequenceParallelRanksGatherAndScatterAndHoldLess) {
  const Workers c;
  CostModel cost_model(c.job.model, c.job.train, c.cluster, c.profile);
  const int devices = cost_model.add(c.devices);
  for (int repeat = 0; repeat < 3; ++repeat) {
    const BlockLoad whole = cost_model.block(repeat, devices, {.tp = 2}, 1);
    const BlockLoad cut = cost_model.block(repeat, devices, {.tp = 2, .sequence_parallel = true}, 1);
    EXPECT_EQ(cut.forward_played,
              model::cost_of(c.job.model.repeats[static_cast<std::size_t>(repeat)].block, {.tensor_parallel = 2, .sequence_parallel = true})
                  .forward_exchanges);
    if (repeat > 0) {
      EXPECT_LT(cut.saved, whole.saved);
    }
    if (repeat < 2) {
      EXPECT_EQ(cut.output, whole.output / 2);
    }
    EXPECT_LE(cut.forward - cut.forward_exchange, whole.forward - whole.forward_exchange);
  }
}

// Of 259 rows, three ranks hold 87 each, the last one two of padding.
TEST(Measured, ContextParallelRanksExchangeKeysAndHoldPartsOfSequences) {
  const Workers c;
  CostModel cost_model(c.job.model, c.job.train, c.cluster, c.profile);
  const int devices = cost_model.add(c.devices);
  const BlockLoad whole = cost_model.block(1, devices, {}, 4);
  for (const model::ContextKind kind : {model::ContextKind::ring, model::ContextKind::ulysses}) {
    plan::Strategy strategy;
    strategy.cp = 2;
    strategy.context = kind;
    const BlockLoad cut = cost_model.block(1, devices, strategy, 4);
    ASSERT_FALSE(cut.forward_played.empty());
    double seconds = 0;
    for (const model::Exchange& one : cut.forward_played) {
      EXPECT_EQ(one.axis, model::Exchange::Axis::context);
      seconds += one.messages * cost_model.exchange(one.operation, one.bytes.value / one.messages, 2, c.cluster.groups[0].inside);
    }
    EXPECT_NEAR(cut.forward_exchange, seconds, 1e-12);
    EXPECT_LT(cut.forward - cut.forward_exchange, whole.forward);
    EXPECT_LT(cut.saved, 0.51 * whole.saved);
    EXPECT_EQ(cut.weights, whole.weights);
  }
}

TEST(Measured, AWorkerHoldsThePaddingOfItsShard) {
  const auto job = plan::job_of({.hidden = 48, .heads = 6, .kv_heads = 6, .vocab = 259});
  const auto cluster = plan::cpu_cluster(4);
  const profile::Profile nothing;
  CostModel cost_model(job.model, job.train, cluster, nothing);
  EXPECT_EQ(cost_model.block(0, 0, {.tp = 3}, 1).weights, 87 * 48 * 4);
  EXPECT_EQ(cost_model.block(0, 0, {}, 1).weights, 259 * 48 * 4);
}

TEST(Measured, AWorkerHasItsShareOfTheHost) {
  const Workers c;
  CostModel cost_model(c.job.model, c.job.train, c.cluster, c.profile);
  const auto whole = static_cast<double>(memory_limit(c.cluster.groups[0].device).value);
  EXPECT_DOUBLE_EQ(cost_model.memory_limit(0), whole);
  EXPECT_DOUBLE_EQ(cost_model.memory_limit(cost_model.add(c.devices)), whole / 2);
  const plan::Plan plan = pipeline_of_two(c.job, 8);
  EXPECT_EQ(cost_model.memory_limit(cost_model.devices_of(plan, plan.stages[0])), whole / 2);
}

TEST(Measured, WorkersOfUnequalHostsArePartsOfAStage) {
  const auto job = plan::job_of({.hidden = 1024, .heads = 8, .kv_heads = 8, .ffn = 4096, .seq = 128, .global_batch = 8});
  auto cluster = plan::cpu_cluster(4);
  cluster.groups.push_back(plan::cpu_cluster(2).groups[0]);
  const profile::Profile none;
  CostModel cost_model(job.model, job.train, cluster, none);
  plan::Plan plan;
  plan.global_batch = 8;
  plan.ranks = {{0, 0, 0, 4}, {1, 0, 0, 2}};
  plan.stages = {{{0, 1}, {{0, job.model.block_count(), {.dp = 2}}}, {{1, 6}, {1, 2}}}};
  const int devices = cost_model.devices_of(plan, plan.stages[0]);
  ASSERT_EQ(cost_model.parts_of(devices).parts.size(), 2u);
  const auto passes = [&](int part) {
    const BlockLoad& load = cost_model.block(1, devices, {.dp = 2}, 8, part);
    return load.forward + load.backward();
  };
  EXPECT_EQ(cost_model.micro_batch(devices, 0, {.dp = 2}, 8), 6);
  EXPECT_EQ(cost_model.micro_batch(devices, 1, {.dp = 2}, 8), 2);
  EXPECT_GT(passes(0), passes(1));
  EXPECT_EQ(passes(kAllParts), passes(0));
  // Without shares both have the same samples, and the host with half the cores is the slower one.
  plan.stages[0].shares.clear();
  const int even = cost_model.devices_of(plan, plan.stages[0]);
  EXPECT_EQ(cost_model.micro_batch(even, 0, {.dp = 2}, 8), 4);
  EXPECT_GT(cost_model.block(1, even, {.dp = 2}, 8, 1).forward, cost_model.block(1, even, {.dp = 2}, 8, 0).forward);
}

TEST(Measured, PlansHaveNoClosedForm) {
  const Workers c;
  CostModel cost_model(c.job.model, c.job.train, c.cluster, c.profile);
  EXPECT_EQ(error_of([&] { predict(pipeline_of_two(c.job, 8), cost_model); }).code(), ErrorCode::internal);
}

// The bytes of a parameter do not depend on where the times come from.
TEST(Measured, StateTakesTheSameBytesOnAnyDevices) {
  const auto job = plan::job_of({.layers = 4, .hidden = 256, .tied = true, .global_batch = 8, .precision = "bf16"});
  const auto hosts = plan::cpu_cluster(4);
  const auto accelerators = plan::gpu_cluster(1, 4);
  const profile::Profile none;
  CostModel on_hosts(job.model, job.train, hosts, none);
  CostModel on_accelerators(job.model, job.train, accelerators, none);
  for (int repeat = 0; repeat < static_cast<int>(job.model.repeats.size()); ++repeat)
    for (const plan::Strategy& strategy : {plan::Strategy{.dp = 4}, plan::Strategy{.dp = 2, .tp = 2, .zero = 1}}) {
      const BlockLoad& a = on_hosts.block(repeat, 0, strategy, 8);
      const BlockLoad& b = on_accelerators.block(repeat, 0, strategy, 8);
      EXPECT_EQ(a.weights, b.weights);
      EXPECT_EQ(a.gradients, b.gradients);
      EXPECT_EQ(a.optimizer_state, b.optimizer_state);
      EXPECT_EQ(a.tied_bytes, b.tied_bytes);
    }
}

// Of an accelerator it takes nothing, in 32 bits neither; a CPU's memory is the host's, and its step the same.
TEST(Measured, AnOptimizerOnTheHostCountsWhereItLies) {
  const auto job = plan::job_of({.layers = 4, .hidden = 256, .tied = true, .global_batch = 8});
  const auto hosts = plan::cpu_cluster(4);
  const auto accelerators = plan::gpu_cluster(1, 4);
  const profile::Profile none;
  CostModel on_hosts(job.model, job.train, hosts, none);
  CostModel on_accelerators(job.model, job.train, accelerators, none);
  const plan::Strategy on_device{.dp = 4, .zero = 1};
  plan::Strategy on_host = on_device;
  on_host.offload_optimizer = true;
  for (int repeat = 0; repeat < static_cast<int>(job.model.repeats.size()); ++repeat) {
    const BlockLoad a = on_hosts.block(repeat, 0, on_device, 8);
    const BlockLoad b = on_hosts.block(repeat, 0, on_host, 8);
    EXPECT_GT(a.optimizer_state, 0);
    EXPECT_EQ(b.optimizer_state, a.optimizer_state);
    EXPECT_EQ(b.tied_bytes, a.tied_bytes);
    EXPECT_EQ(b.optimizer, a.optimizer);
    const BlockLoad c = on_accelerators.block(repeat, 0, on_device, 8);
    const BlockLoad d = on_accelerators.block(repeat, 0, on_host, 8);
    EXPECT_EQ(d.optimizer_state, 0);
    EXPECT_LE(d.tied_bytes, c.tied_bytes);
    EXPECT_GT(d.optimizer, c.optimizer);
    EXPECT_EQ(d.weights, c.weights);
  }
}

TEST(Memory, IsThatOfThePlansOwnOrder) {
  const Workers c;
  plan::Plan in_turn = pipeline_of_two(c.job, 8);
  plan::Plan all_first = in_turn;
  all_first.schedule = plan::Schedule::gpipe;
  const auto memory = [&](const plan::Plan& plan) { return memory_of(plan, c.job.model, c.job.train, c.cluster, c.profile); };
  ASSERT_GT(memory(all_first)[0], memory(in_turn)[0]);
  for (int rank = 0; rank < 2; ++rank) in_turn.order.push_back(order_of(plan::Schedule::gpipe, rank, 2, 8));
  EXPECT_EQ(memory(in_turn), memory(all_first));
}

}  // namespace
}  // namespace tessera::cost
