// The simulator against the closed form of the same costs, on accelerators.
#include "cost/cost.hpp"
#include "search/search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "plan/any_strategy.hpp"
#include "plan/plan_helper.hpp"
#include "plan/schedule/schedule.hpp"
#include "sim/sim.hpp"

namespace tessera::sim {
namespace {

using plan::Strategy;

// Two kinds of devices.
cluster::ClusterSpec mixed_cluster(int nodes) {
  return cluster::read_cluster(
      ConfigNode::parse(text("name: mixed\ngroups:\n  - {name: new, device: h100-sxm, nodes: ", nodes,
                             ", devices_per_node: 8, inside: nvlink4, network: rdma-400g}\n  - {name: old, device: a100-80, nodes: ", nodes,
                             ", devices_per_node: 8, inside: nvlink3, network: rdma-100g}\nbetween: rdma-100g\n"),
                        "cluster.yaml"));
}

struct StageShape {
  int group = 0;
  int layers = 1;
  std::vector<Strategy> strategies;  // of runs as equal as they divide
};

// The embedding and the head stand in the first and the last stage.
plan::Plan make_plan(const model::ModelSpec& model, const cluster::ClusterSpec& cluster, const std::vector<StageShape>& shapes) {
  plan::Plan plan;
  plan.model_fingerprint = model.fingerprint();
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.precision = model::Precision::bf16;
  std::vector<int> used(cluster.groups.size(), 0);
  int first = 0;
  for (std::size_t s = 0; s < shapes.size(); ++s) {
    const StageShape& shape = shapes[s];
    plan::Stage stage;
    const int per_node = cluster.groups[shape.group].devices_per_node;
    for (int i = 0; i < shape.strategies.front().ranks(); ++i) {
      stage.ranks.push_back(plan.world_size());
      plan.ranks.push_back({shape.group, used[shape.group] / per_node, used[shape.group] % per_node});
      ++used[shape.group];
    }
    const int blocks = shape.layers + (s == 0 ? 1 : 0) + (s + 1 == shapes.size() ? 1 : 0);
    const int runs = static_cast<int>(shape.strategies.size());
    for (int r = 0; r < runs; ++r) stage.runs.push_back({first + blocks * r / runs, first + blocks * (r + 1) / runs, shape.strategies[r]});
    first += blocks;
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

struct Case {
  model::JobSpec job;
  cluster::ClusterSpec cluster;
  plan::Plan plan;
};

// Also with what only the price depends on.
Strategy any_priced_strategy(int width) {
  Strategy out = plan::any_strategy(width);
  out.recompute = *rc::gen::element(model::Recompute::none, model::Recompute::selective, model::Recompute::full);
  out.sequence_parallel = out.tp > 1 && *rc::gen::arbitrary<bool>();
  return out;
}

Case any_case() {
  const int stages = *rc::gen::inRange(1, 6);
  const int micro_batches = *rc::gen::inRange(1, 24);
  const std::vector<int> layers = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(stages), rc::gen::inRange(2, 9));
  int all_layers = 0;
  std::vector<StageShape> shapes;
  for (int s = 0; s < stages; ++s) {
    const int width = *rc::gen::element(1, 2, 3, 4, 6, 8);
    StageShape shape{*rc::gen::inRange(0, 2), layers[s], {any_priced_strategy(width)}};
    if (*rc::gen::arbitrary<bool>()) shape.strategies.push_back(any_priced_strategy(width));
    all_layers += layers[s];
    shapes.push_back(std::move(shape));
  }
  // A rank that holds the first block and the last has one part of what they share.
  const bool may_tie = stages > 1 || shapes[0].strategies.front().tp == shapes[0].strategies.back().tp;
  Case out{plan::job_of({.layers = all_layers,
                         .hidden = 1024,
                         .heads = 16,
                         .kv_heads = 8,
                         .ffn = 4096,
                         .seq = 2048,
                         .vocab = 32000,
                         .tied = may_tie && *rc::gen::arbitrary<bool>(),
                         .global_batch = 24 * micro_batches,
                         .precision = "bf16"}),
           mixed_cluster(5),
           {}};
  out.plan = make_plan(out.job.model, out.cluster, shapes);
  out.plan.global_batch = out.job.train.global_batch;
  out.plan.micro_batches = micro_batches;
  out.plan.schedule = *rc::gen::element(plan::Schedule::one_f_one_b, plan::Schedule::gpipe, plan::Schedule::zb_h1, plan::Schedule::zb_h2);
  plan::check(out.plan, out.job, out.cluster);
  return out;
}

Result run_all(const Case& c) { return simulate(c.plan, c.job.model, c.job.train, c.cluster, {}, Simulated::every_rank).result; }

plan::Prediction priced(const Case& c) {
  cost::CostModel cost_model(c.job.model, c.cluster, c.plan.precision);
  return cost::predict(c.plan, cost_model);
}

double predicted_step(const Case& c) { return priced(c).step.value; }

double simulated_step(const Case& c) { return simulate(c.plan, c.job.model, c.job.train, c.cluster, {}).result.step.value; }

// Of few micro-batches the closed form is an upper bound: it fills and drains the pipeline one stage after the other, though a
// stage that is slower than those behind it has work meanwhile.
RC_GTEST_PROP(LoadedSim, AgreesWithTheClosedForm, ()) {
  Case c = any_case();
  c.plan.schedule = plan::Schedule::one_f_one_b;
  c.plan.delayed_exchange = *rc::gen::arbitrary<bool>();
  c.plan.micro_batches = *rc::gen::inRange<std::int64_t>(4, 9) * static_cast<std::int64_t>(c.plan.stages.size());
  c.plan.global_batch = 24 * c.plan.micro_batches;
  c.cluster.between = {"fast", BytesPerSecond(1e15), Seconds(0)};
  for (auto& group : c.cluster.groups) group.network.bandwidth = BytesPerSecond(1e15);
  RC_LOG() << plan::to_json(c.plan);
  const double ratio = predicted_step(c) / simulated_step(c);
  RC_ASSERT(ratio > 0.98 && ratio < 1.08);
}

RC_GTEST_PROP(LoadedSim, HoldsAsMuchMemoryAsTheClosedFormSays, ()) {
  const Case c = any_case();
  cost::CostModel cost_model(c.job.model, c.cluster, c.plan.precision);
  const plan::Prediction predicted = cost::predict(c.plan, cost_model);
  const Result result = simulate(c.plan, c.job.model, c.job.train, c.cluster, {}).result;
  for (int rank = 0; rank < c.plan.world_size(); ++rank)
    RC_ASSERT(std::abs((result.ranks[rank].peak_memory - predicted.memory[rank]).value) <= 4);
}

RC_GTEST_PROP(LoadedSim, OneRankOfEachStageForAllGivesTheSame, ()) {
  const Case c = any_case();
  RC_LOG() << plan::to_json(c.plan);
  const Result each = run_all(c);
  const Simulation folded = simulate(c.plan, c.job.model, c.job.train, c.cluster, {});
  RC_ASSERT(folded.programs.size() == c.plan.stages.size());
  RC_ASSERT(std::abs(folded.result.step.value / each.step.value - 1) < 1e-9);
  RC_ASSERT(std::abs(folded.result.bubble - each.bubble) < 1e-9);
  for (std::size_t r = 0; r < each.ranks.size(); ++r) {
    RC_ASSERT(std::abs(folded.result.ranks[r].busy.value - each.ranks[r].busy.value) <= 1e-9 * each.step.value);
    RC_ASSERT(std::abs(folded.result.ranks[r].exposed.value - each.ranks[r].exposed.value) <= 1e-9 * each.step.value);
    RC_ASSERT(folded.result.ranks[r].peak_memory == each.ranks[r].peak_memory);
  }
}

// Replicas that exchange more than their passes can hide: what is waited for is communication, not idleness.
TEST(LoadedSim, TellsExposedCommunicationFromIdleness) {
  const auto shares = [](const char* parallel, int nodes) {
    const plan::JobShape shape{.layers = 8,
                               .hidden = 4096,
                               .heads = 32,
                               .kv_heads = 32,
                               .ffn = 11008,
                               .seq = 1024,
                               .vocab = 32000,
                               .global_batch = 16,
                               .precision = "bf16",
                               .parallel = parallel};
    const model::JobSpec job = plan::job_of(shape);
    const cluster::ClusterSpec cluster = plan::gpu_cluster(nodes, 8);
    const plan::Plan plan = search::search(job, cluster, {}, {.top = 0, .vendors = {}}).best;
    return simulate(plan, job.model, job.train, cluster, {}).result;
  };
  for (const Result& result : {shares("{dp: 16, tp: 1, zero: 1}", 2), shares("{pp: 8, tp: 1}", 1), shares("{tp: 8}", 2)}) {
    EXPECT_NEAR(result.utilization + result.exposed + result.bubble, 1, 1e-9);
    for (const RankResult& rank : result.ranks) {
      EXPECT_NEAR(rank.busy.value + rank.exposed.value + rank.idle.value, result.step.value, 1e-9 * result.step.value);
      EXPECT_GE(rank.idle.value, -1e-9 * result.step.value);
    }
  }
  const Result replicas = shares("{dp: 16, tp: 1, zero: 1}", 2);
  EXPECT_GT(replicas.exposed, 0.02);
  EXPECT_NEAR(replicas.bubble, 0, 1e-9);
  const Result pipeline = shares("{pp: 8, tp: 1}", 1);
  EXPECT_GT(pipeline.bubble, 0.02);
  EXPECT_GT(pipeline.bubble, pipeline.exposed);
}

// 16 stages of two widths on two kinds of devices.
TEST(LoadedSim, TenThousandRanksAreSimulatedByOneOfEachStage) {
  Case c{plan::job_of({.layers = 96,
                       .hidden = 8192,
                       .heads = 64,
                       .kv_heads = 8,
                       .ffn = 28672,
                       .seq = 4096,
                       .vocab = 128000,
                       .tied = true,
                       .global_batch = 4096,
                       .precision = "bf16"}),
         mixed_cluster(1024),
         {}};
  std::vector<StageShape> shapes;
  for (int s = 0; s < 16; ++s) shapes.push_back({s % 2, 6, {{.dp = s % 4 == 0 ? 128 : 64, .tp = 8, .zero = 1, .sequence_parallel = true}}});
  for (int s = 1; s < 16; s += 4)
    shapes[s].strategies.push_back({.dp = 32, .tp = 8, .zero = 3, .recompute = model::Recompute::full, .cp = 2});
  c.plan = make_plan(c.job.model, c.cluster, shapes);
  c.plan.global_batch = 4096;
  c.plan.micro_batches = 32;
  plan::check(c.plan, c.job, c.cluster);
  EXPECT_GT(c.plan.world_size(), 10000);
  const Simulation simulation = simulate(c.plan, c.job.model, c.job.train, c.cluster, {});
  EXPECT_EQ(simulation.programs.size(), 16u);
  EXPECT_EQ(simulation.result.ranks.size(), c.plan.ranks.size());
}

TEST(LoadedSim, MessagesTakeWhatTheWholeBoundaryDoes) {
  Case c{plan::job_of({.layers = 4, .hidden = 1024, .global_batch = 12, .precision = "bf16"}), mixed_cluster(1), {}};
  c.plan = make_plan(c.job.model, c.cluster, {{0, 2, {{.dp = 2}}}, {1, 2, {{.dp = 3}}}});
  c.plan.global_batch = 12;
  c.plan.micro_batches = 2;
  cost::CostModel cost_model(c.job.model, c.cluster, c.plan.precision);
  const double bytes = 6 * 32 * 1024 * 2;
  const Simulation simulated = simulate(c.plan, c.job.model, c.job.train, c.cluster, {}, Simulated::every_rank);
  int sends = 0;
  for (const Span& span : simulated.result.spans) {
    const program::Op op = simulated.programs[span.rank].instructions[span.instruction].op;
    if (op != program::Op::send_activation && op != program::Op::send_gradient) continue;
    const bool activation = op == program::Op::send_activation;
    EXPECT_NEAR((span.end - span.begin).value, activation ? cost_model.message(bytes, 0, 2, 1, 3) : cost_model.message(bytes, 1, 3, 0, 2),
                1e-12);
    ++sends;
  }
  EXPECT_EQ(sends, 16);
}

// The first stage waits for what it uses first; the others have the time in which the pipeline fills.
RC_GTEST_PROP(LoadedSim, ADelayedExchangeNeverTakesLonger, ()) {
  Case c = any_case();
  const double simulated = simulated_step(c);
  c.plan.delayed_exchange = true;
  RC_ASSERT(simulated_step(c) <= simulated * (1 + 1e-12));
}

TEST(LoadedSim, TooFewMicroBatchesToFillABubbleWithAreNotPromisedToFillIt) {
  Case c{plan::job_of({.layers = 6,
                       .hidden = 2048,
                       .heads = 16,
                       .kv_heads = 16,
                       .ffn = 8192,
                       .seq = 2048,
                       .vocab = 32000,
                       .global_batch = 48,
                       .precision = "bf16"}),
         mixed_cluster(1),
         {}};
  c.plan = make_plan(c.job.model, c.cluster, {{0, 2, {{.dp = 2}}}, {0, 2, {{.dp = 2}}}, {0, 2, {{.dp = 2}}}, {0, 0, {{.dp = 2}}}});
  c.plan.global_batch = 48;
  for (const plan::Schedule schedule : {plan::Schedule::zb_h1, plan::Schedule::zb_h2})
    for (const int micro_batches : {1, 2, 3}) {
      c.plan.schedule = schedule;
      c.plan.micro_batches = micro_batches;
      const double predicted = priced(c).step.value;
      EXPECT_GT(predicted, 0.98 * simulate(c.plan, c.job.model, c.job.train, c.cluster, {}).result.step.value)
          << plan::name_of(schedule) << " " << micro_batches;
    }
}

// 4 H100 beside 4 A100 in one stage.
Case side_by_side(std::int64_t samples_of_new, std::int64_t samples_of_old) {
  Case c{plan::job_of({.layers = 8,
                       .hidden = 2048,
                       .heads = 16,
                       .kv_heads = 16,
                       .ffn = 8192,
                       .seq = 2048,
                       .vocab = 32000,
                       .global_batch = 32,
                       .precision = "bf16"}),
         mixed_cluster(1),
         {}};
  c.plan = make_plan(c.job.model, c.cluster, {{0, 8, {{.dp = 8}}}});
  c.plan.global_batch = 32;
  for (int rank = 4; rank < 8; ++rank) c.plan.ranks[rank] = {1, 0, rank - 4};
  c.plan.stages[0].shares = {{4, samples_of_new}, {4, samples_of_old}};
  return c;
}

TEST(LoadedSim, AStageOfTwoKindsTakesWhatTheSlowerOfThemDoes) {
  const auto step = [](const Case& c) {
    plan::check(c.plan, c.job, c.cluster);
    const plan::Prediction prediction = priced(c);
    const double predicted = prediction.step.value;
    double parts = 0;
    for (const auto& [name, seconds] : prediction.parts) parts += seconds.value;
    EXPECT_NEAR(parts / predicted, 1, 1e-9);
    const Simulation simulation = simulate(c.plan, c.job.model, c.job.train, c.cluster, {});
    EXPECT_EQ(simulation.programs.size(), 1u);
    EXPECT_NEAR(simulation.result.step.value / predicted, 1, 1e-9);
    return predicted;
  };
  const double even = step(side_by_side(16, 16));
  EXPECT_LT(step(side_by_side(20, 12)), even);
  EXPECT_GT(step(side_by_side(12, 20)), even);
}

TEST(LoadedSim, RanksOfAStageHoldWhatTheirShareOfTheBatchNeeds) {
  const Case c = side_by_side(28, 4);
  const plan::Prediction prediction = priced(c);
  EXPECT_EQ(prediction.memory[0], prediction.memory[3]);
  EXPECT_EQ(prediction.memory[4], prediction.memory[7]);
  cost::CostModel cost_model(c.job.model, c.cluster, c.plan.precision);
  const auto activations = [&](int rank) {
    for (const auto& [name, bytes] : cost::memory_terms(c.plan, rank, cost_model))
      if (name == "activations") return bytes;
    return Bytes(0);
  };
  EXPECT_NEAR(activations(0) / activations(4), 7, 1e-6);
  // The simulator keeps to the memory that is fullest.
  const Simulation simulation = simulate(c.plan, c.job.model, c.job.train, c.cluster, {});
  EXPECT_GE(simulation.result.ranks[0].peak_memory, prediction.memory[0]);
}

TEST(LoadedSim, PipelinesInsideNodesPassMessagesInsideAndExchangeGradientsOutside) {
  Case c{plan::job_of({.layers = 6,
                       .hidden = 2048,
                       .heads = 16,
                       .kv_heads = 16,
                       .ffn = 8192,
                       .seq = 2048,
                       .vocab = 32000,
                       .global_batch = 32,
                       .precision = "bf16"}),
         mixed_cluster(2),
         {}};
  c.plan = make_plan(c.job.model, c.cluster, {{0, 3, {{.dp = 8}}}, {0, 3, {{.dp = 8}}}});
  c.plan.global_batch = 32;
  c.plan.micro_batches = 4;
  const auto part = [&](const char* name) {
    for (const auto& [part, seconds] : priced(c).parts)
      if (part == name) return seconds.value;
    return 0.0;
  };
  const auto message = [&] {
    cost::CostModel cost_model(c.job.model, c.cluster, c.plan.precision);
    return cost_model.message(1e9, cost_model.devices_of(c.plan, c.plan.stages[0]), 8, cost_model.devices_of(c.plan, c.plan.stages[1]), 8);
  };
  const double whole_nodes = message();
  const double gradients = part("gradient exchange");
  // Four devices of each of both nodes for either stage.
  for (int rank = 0; rank < 16; ++rank) c.plan.ranks[rank] = {0, rank / 4 % 2, rank / 8 * 4 + rank % 4};
  plan::check(c.plan, c.job, c.cluster);
  EXPECT_LT(message(), whole_nodes / 4);
  EXPECT_GT(part("gradient exchange"), 2 * gradients);
}

TEST(LoadedSim, PartsAcrossNodesLeaveTheInsideLinkToReplicas) {
  Case c{plan::job_of({.layers = 6,
                       .hidden = 2048,
                       .heads = 16,
                       .kv_heads = 16,
                       .ffn = 8192,
                       .seq = 2048,
                       .vocab = 32000,
                       .global_batch = 32,
                       .precision = "bf16"}),
         mixed_cluster(2),
         {}};
  c.plan = make_plan(c.job.model, c.cluster, {{0, 6, {{.dp = 8, .tp = 2}}}});
  c.plan.global_batch = 32;
  c.plan.micro_batches = 4;
  const auto load = [&] {
    cost::CostModel cost_model(c.job.model, c.cluster, c.plan.precision);
    return cost_model.block(1, cost_model.devices_of(c.plan, c.plan.stages[0]), c.plan.stages[0].runs[0].strategy, 8);
  };
  const double parts = load().spent.tensor_exchange;
  const double replicas = load().exchange;
  for (int i = 0; i < 16; ++i) c.plan.stages[0].ranks[i] = i % 2 * 8 + i / 2;
  plan::check(c.plan, c.job, c.cluster);
  EXPECT_GT(load().spent.tensor_exchange, 2 * parts);
  EXPECT_LT(load().exchange, replicas / 2);
  const double predicted = priced(c).step.value;
  EXPECT_NEAR(simulate(c.plan, c.job.model, c.job.train, c.cluster, {}).result.step.value / predicted, 1, 1e-9);
}

// Message by message, and with the gathers among tensor-parallel ranks.
TEST(LoadedSim, UnequalStagesOnCpusExchangeTheirParts) {
  const auto job = plan::job_of({.layers = 4, .global_batch = 8});
  const auto cluster = plan::cpu_cluster(6);
  plan::Plan plan = make_plan(job.model, cluster, {{0, 2, {{.dp = 4}}}, {0, 2, {{.dp = 1, .tp = 2}}}});
  plan.precision = model::Precision::f32;
  plan.global_batch = 8;
  plan::check(plan, job, cluster);
  const Simulation simulated = simulate(plan, job.model, job.train, cluster, {});
  ASSERT_EQ(simulated.programs.size(), 6u);
  const double boundary = 8.0 * static_cast<double>(job.model.dim("seq") * job.model.dim("hidden")) * 4;
  double sent = 0;
  double gathered = 0;
  for (const Span& span : simulated.result.spans) {
    const program::Instruction& each = simulated.programs[span.rank].instructions[span.instruction];
    if (each.op == program::Op::send_activation) sent += static_cast<double>(each.bytes.value);
    if (each.op != program::Op::gather_activation) continue;
    gathered += static_cast<double>(each.bytes.value);
    EXPECT_GT(span.end - span.begin, Seconds(0));
  }
  EXPECT_EQ(sent, boundary * static_cast<double>(plan.micro_batches));
  EXPECT_EQ(gathered, 2 * boundary * static_cast<double>(plan.micro_batches));
}

TEST(LoadedSim, BlocksOfAStageOnCpusAreCutAnewInThePass) {
  const auto job = plan::job_of({.layers = 4, .global_batch = 8});
  const auto cluster = plan::cpu_cluster(4);
  plan::Plan plan = make_plan(job.model, cluster, {{0, 4, {{.dp = 4}}}});
  plan.precision = model::Precision::f32;
  plan.global_batch = 8;
  const Strategy replicas{.dp = 4};
  const Strategy tensor{.dp = 2, .tp = 2};
  const auto in_passes = [&](const std::vector<plan::StrategyRun>& runs) {
    plan.stages.front().runs = runs;
    plan::check(plan, job, cluster);
    return simulate(plan, job.model, job.train, cluster, {}).result.ranks.front().spent.in_passes;
  };
  EXPECT_EQ(in_passes({{0, 6, replicas}}), Seconds(0));
  const Seconds once = in_passes({{0, 1, replicas}, {1, 3, tensor}, {3, 6, replicas}});
  const Seconds twice = in_passes({{0, 1, replicas}, {1, 2, tensor}, {2, 3, replicas}, {3, 4, tensor}, {4, 6, replicas}});
  EXPECT_GT(once, Seconds(0));
  EXPECT_GT(twice, once);
  // Rows that tensor-parallel ranks hold are gathered where the next block needs all of them, and no others.
  Strategy rows = tensor;
  rows.sequence_parallel = true;
  const Seconds of_rows = in_passes({{0, 6, rows}});
  const Seconds of_sums = in_passes({{0, 6, tensor}});
  const Seconds mixed = in_passes({{0, 2, rows}, {2, 4, tensor}, {4, 6, rows}});
  EXPECT_GT(mixed, std::min(of_rows, of_sums));
  // Sequences are cut anew by an exchange of their own.
  const Strategy context{.dp = 2, .cp = 2};
  EXPECT_GT(in_passes({{0, 3, replicas}, {3, 6, context}}), Seconds(0));
}

}  // namespace
}  // namespace tessera::sim
