#include "sim/sim.hpp"
#include "cost/cost.hpp"
#include "search/search.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <nlohmann/json.hpp>

#include "cost/cost_model.hpp"
#include "plan/plan_helper.hpp"
#include "sim/given_times_helper.hpp"

namespace tessera::sim {
namespace {

using plan::job_of;
using plan::JobShape;

struct Case {
  model::JobSpec job;
  cluster::ClusterSpec cluster;
  profile::Profile profile;
  plan::Plan plan;
};

Result simulate(const Case& c, std::vector<program::Program>* keep = nullptr) {
  Simulation out = sim::simulate(c.plan, c.job.model, c.job.train, c.cluster, c.profile, Simulated::every_rank);
  if (keep != nullptr) *keep = std::move(out.programs);
  return std::move(out.result);
}

// A model and batch of a size at which nothing vanishes, on CPU workers, GPUs of one node or of several nodes.
Case any_case() {
  // Sixteen ranks of a stage on one host's bus do little but wait for it; there the two part by up to 15 %.
  const auto [dp, tp] = *rc::gen::element(std::pair(1, 1), std::pair(1, 2), std::pair(1, 4), std::pair(2, 1), std::pair(2, 2),
                                          std::pair(2, 4), std::pair(4, 1), std::pair(4, 2));
  const int pp = *rc::gen::inRange(1, 5);
  const int micro_batches = *rc::gen::inRange(1, 9);
  const int size = *rc::gen::inRange(1, 5);
  Case c;
  c.job = job_of({.layers = *rc::gen::inRange(pp, 10),
                  .hidden = 256 * size,
                  .ffn = 768 * size,
                  .seq = 128 << *rc::gen::inRange(0, 3),
                  .vocab = 4096,
                  .tied = *rc::gen::arbitrary<bool>(),
                  .global_batch = dp * micro_batches * *rc::gen::inRange(1, 4),
                  .precision = *rc::gen::element("fp32", "bf16"),
                  .parallel = text("{dp: ", dp, ", tp: ", tp, ", pp: ", pp, ", micro_batches: ", micro_batches,
                                   ", zero: ", *rc::gen::inRange(0, 2), ", schedule: ", *rc::gen::element("1f1b", "gpipe"), "}")});
  const int world = dp * tp * pp;
  switch (*rc::gen::inRange(0, 3)) {
    case 0: c.cluster = plan::cpu_cluster(world); break;
    case 1: c.cluster = plan::gpu_cluster(1, world); break;
    default: c.cluster = plan::gpu_cluster(pp, dp * tp); break;
  }
  c.profile.overlap_slowdown = 1 + *rc::gen::inRange(0, 4) * 0.1;
  // Or as measured for each operation: computing and communication slow each other down.
  if (*rc::gen::arbitrary<bool>()) {
    const double slows = 1 + *rc::gen::inRange(0, 5) * 0.1;
    const double slowed = 1 + *rc::gen::inRange(0, 5) * 0.1;
    for (const cluster::Link& link : {c.cluster.groups[0].inside, c.cluster.groups[0].network})
      for (const char* operation : {"all_reduce", "reduce_scatter", "all_gather"}) {
        c.profile.communication.push_back({operation, link.name, 2, link.latency, link.bandwidth});
        c.profile.communication.back().slows = {slows, slows, slows};
        c.profile.communication.back().slowed = {slowed, slowed, slowed};
      }
  }
  c.plan = search::search(c.job, c.cluster, c.profile).best;
  c.plan.delayed_exchange = *rc::gen::arbitrary<bool>();
  c.plan.exchanged_early = *rc::gen::element(0.0, 0.5, 1.0);
  // Any cut, not only the balanced one.
  if (pp > 1 && *rc::gen::arbitrary<bool>()) {
    const int boundary = *rc::gen::inRange(1, pp);
    auto& left = c.plan.stages[boundary - 1].runs.back();
    auto& right = c.plan.stages[boundary].runs.front();
    const int cut = *rc::gen::inRange(left.first + 1, right.last);
    left.last = right.first = cut;
  }
  return c;
}

RC_GTEST_PROP(Sim, HoldsAsMuchMemoryAsThePlanSays, ()) {
  const Case c = any_case();
  const Result result = simulate(c);
  const std::vector<Bytes> memory = cost::memory_of(c.plan, c.job.model, c.job.train, c.cluster, c.profile);
  // But for the rounding of terms to whole bytes.
  for (int rank = 0; rank < c.plan.world_size(); ++rank) RC_ASSERT(std::abs((result.ranks[rank].peak_memory - memory[rank]).value) <= 4);
}

RC_GTEST_PROP(Sim, RunsEachInstructionOnceAfterWhatItWaitsFor, ()) {
  const Case c = any_case();
  std::vector<program::Program> programs;
  const Result result = simulate(c, &programs);
  std::vector<std::vector<Span>> spans(programs.size());
  for (std::size_t r = 0; r < programs.size(); ++r) spans[r].resize(programs[r].instructions.size(), {-1, -1, {}, {}});
  for (const Span& span : result.spans) {
    RC_ASSERT(spans[span.rank][span.instruction].rank == -1);
    spans[span.rank][span.instruction] = span;
  }
  for (std::size_t r = 0; r < programs.size(); ++r) {
    Seconds computed;
    for (std::size_t i = 0; i < spans[r].size(); ++i) {
      const Span& span = spans[r][i];
      RC_ASSERT(span.rank == static_cast<int>(r));
      RC_ASSERT(span.begin <= span.end && (c.plan.delayed_exchange || span.end <= result.step));
      for (int before : programs[r].instructions[i].after) RC_ASSERT(spans[r][before].end <= span.begin);
      if (!program::is_compute(programs[r].instructions[i].op)) continue;
      RC_ASSERT(computed <= span.begin);
      computed = span.end;
    }
  }
}

RC_GTEST_PROP(Sim, OneRankForAllThatDoTheSameGivesTheSameTimes, ()) {
  Case c = any_case();
  const int nodes = *rc::gen::inRange(1, 5);
  const auto& strategy = c.plan.stages.front().runs.front().strategy;
  // Whole replicas on a node, or every stage spread over several, on accelerators with one shared adapter a node.
  const int per_node = c.plan.world_size() / nodes;
  if (!c.cluster.groups[0].device.is_cpu() && c.plan.world_size() % nodes == 0 &&
      (per_node % strategy.tp == 0 || strategy.tp % per_node == 0)) {
    c.cluster = plan::gpu_cluster(nodes, per_node);
    c.cluster.groups[0].network.shared = *rc::gen::arbitrary<bool>();
    c.cluster.groups[0].inside.shared = *rc::gen::arbitrary<bool>();
    for (int rank = 0; rank < c.plan.world_size(); ++rank) c.plan.ranks[rank] = {0, rank / per_node, rank % per_node, 1};
  }
  const Result each = simulate(c);
  const Simulation folded = sim::simulate(c.plan, c.job.model, c.job.train, c.cluster, c.profile);
  RC_CLASSIFY(folded.programs.size() < each.ranks.size());
  RC_LOG() << cluster::to_yaml(c.cluster) << plan::to_json(c.plan) << "folded " << folded.result.step.value << " each " << each.step.value
           << "\n";
  RC_ASSERT(std::abs(folded.result.step.value / each.step.value - 1) < 1e-9);
  RC_ASSERT(std::abs(folded.result.bubble - each.bubble) < 1e-9);
  RC_ASSERT(folded.result.ranks.size() == each.ranks.size());
  for (std::size_t r = 0; r < each.ranks.size(); ++r) {
    RC_ASSERT(std::abs(folded.result.ranks[r].busy.value - each.ranks[r].busy.value) <= 1e-9 * each.step.value);
    RC_ASSERT(std::abs(folded.result.ranks[r].exposed.value - each.ranks[r].exposed.value) <= 1e-9 * each.step.value);
    RC_ASSERT(folded.result.ranks[r].peak_memory == each.ranks[r].peak_memory);
  }
}

RC_GTEST_PROP(Sim, MessagesBeginAndEndTogetherOnBothSides, ()) {
  const Case c = any_case();
  std::vector<program::Program> programs;
  const Result result = simulate(c, &programs);
  std::map<std::tuple<int, int, bool, int>, std::vector<std::pair<double, double>>> messages;
  for (const Span& span : result.spans) {
    const auto& instruction = programs[span.rank].instructions[span.instruction];
    if (instruction.peer < 0) continue;
    const bool sends = instruction.op == program::Op::send_activation || instruction.op == program::Op::send_gradient;
    const bool forward = instruction.op == program::Op::send_activation || instruction.op == program::Op::receive_activation;
    messages[{sends ? span.rank : instruction.peer, sends ? instruction.peer : span.rank, forward, instruction.micro_batch}].push_back(
        {span.begin.value, span.end.value});
  }
  for (const auto& [key, sides] : messages) RC_ASSERT(sides.size() == 2u && sides[0] == sides[1]);
}

TEST(Sim, GivesTheSameResultTwice) {
  const auto job = job_of(
      {.layers = 6, .hidden = 256, .tied = true, .global_batch = 16, .parallel = "{dp: 2, tp: 2, pp: 2, zero: 1, micro_batches: 4}"});
  const auto cluster = plan::gpu_cluster(2, 4);
  const Case c{job, cluster, {}, search::search(job, cluster, {}).best};
  std::vector<program::Program> programs;
  const Result once = simulate(c, &programs);
  EXPECT_EQ(to_chrome_trace(once, programs), to_chrome_trace(simulate(c), programs));
}

TEST(Sim, TransfersThatMeetOnASharedLinkShareItEvenly) {
  // Two tensor-parallel halves reduce their gradients over one bus: together as long as one after the other.
  const auto job = job_of({.layers = 2,
                           .hidden = 512,
                           .ffn = 1536,
                           .global_batch = 2,
                           .parallel = "{dp: 2, tp: 2, pp: 1, zero: 0, micro_batches: 1, recompute: none}"});
  auto shared = plan::cpu_cluster(4);
  shared.groups[0].inside = {"bus", BytesPerSecond(1e8), Seconds(0), true};
  const Case c{job, shared, {}, search::search(job, shared, {}).best};
  std::vector<program::Program> programs;
  const Result result = simulate(c, &programs);
  double longest = 0;
  for (const Span& span : result.spans)
    if (programs[span.rank].instructions[span.instruction].op == program::Op::reduce_gradients) {
      const auto& instruction = programs[span.rank].instructions[span.instruction];
      const double alone =
          profile::collective_time({}, "all_reduce", instruction.bytes, 2, shared.groups[0].inside, profile::Medium::bus).value;
      longest = std::max(longest, (span.end - span.begin).value / alone);
    }
  EXPECT_NEAR(longest, 2.0, 1e-6);
}

// Each stage by the source that knows its times: what a roofline says of the host, calibrations of the accelerator.
TEST(Sim, HostsAndAcceleratorsMeetOnTheLinkBetweenThem) {
  const auto job = job_of({.layers = 4, .hidden = 512, .seq = 512, .global_batch = 8, .precision = "bf16"});
  auto cluster = plan::gpu_cluster(1, 2);
  cluster.groups.push_back(plan::cpu_cluster(4).groups[0]);
  const auto stages = [&](plan::RankPlace first, const char* between) {
    cluster.between = cluster::known_link(between);
    plan::Plan plan;
    plan.precision = model::Precision::bf16;
    plan.global_batch = 8;
    plan.micro_batches = 4;
    plan.ranks = {first, {0, 0, 1}};
    plan.stages = {{{0}, {{0, 3, {}}}}, {{1}, {{3, job.model.block_count(), {}}}}};
    return sim::simulate(plan, job.model, job.train, cluster, {}).result;
  };
  const Result accelerators = stages({0, 0, 0}, "tcp-10g");
  const Result mixed = stages({1, 0, 0, 4}, "tcp-10g");
  EXPECT_NEAR(mixed.ranks[1].busy.value, accelerators.ranks[1].busy.value, 1e-9 * mixed.ranks[1].busy.value);
  EXPECT_GT(mixed.ranks[0].busy.value, 2 * accelerators.ranks[0].busy.value);
  EXPECT_GT(stages({1, 0, 0, 4}, "tcp-1g").step, mixed.step);
}

TEST(Sim, ProgramsThatWaitForEachOtherAreNamed) {
  const auto job = job_of({.layers = 2, .global_batch = 4, .parallel = "{dp: 1, tp: 1, pp: 2, micro_batches: 2}"});
  const auto cluster = plan::gpu_cluster(1, 2);
  const plan::Plan plan = search::search(job, cluster, {}).best;
  auto programs = program::compile(plan, job.model);
  for (auto& instruction : programs[0].instructions)
    if (instruction.op == program::Op::receive_gradient) instruction.peer = 0;
  try {
    run(programs, {Seconds(1), Seconds(1), Seconds(1), Seconds(0)});
    FAIL() << "a deadlock was not noticed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("wait for each other"));
    EXPECT_EQ(error.where().rank, 0);
  }
}

TEST(Trace, HasOneEventForEachInstructionAndNamedRows) {
  const auto job = job_of({.layers = 4, .global_batch = 8, .parallel = "{dp: 1, tp: 2, pp: 2, micro_batches: 2}"});
  const auto cluster = plan::gpu_cluster(1, 4);
  const Case c{job, cluster, {}, search::search(job, cluster, {}).best};
  std::vector<program::Program> programs;
  const Result result = simulate(c, &programs);
  const auto trace = nlohmann::json::parse(to_chrome_trace(result, programs));
  std::size_t events = 0;
  std::size_t exchanges = 0;
  std::size_t expected = 0;
  for (const auto& program : programs) expected += program.instructions.size();
  std::set<std::string> rows;
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("name") != "exposed_communication" && event.at("args").contains("instruction")) ++events;
    if (event.at("ph") == "X" && event.at("name") == "exposed_communication") ++exchanges;
    if (event.at("ph") == "M") rows.insert(event.at("args").at("name").get<std::string>());
  }
  EXPECT_EQ(events, expected);
  // Tensor parallelism's, in every pass of the two stages' layers.
  EXPECT_GT(exchanges, 0u);
  EXPECT_TRUE(rows.contains("compute"));
  EXPECT_TRUE(rows.contains("send activation"));
  EXPECT_TRUE(rows.contains("rank 3, stage 1"));
}

}  // namespace
}  // namespace tessera::sim
