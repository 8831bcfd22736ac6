// A run goes on under another plan, between two steps, and the plan that fits hosts of other speeds is found.
#include "train/rebalance.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/config.hpp"
#include "base/error.hpp"
#include "cost/cost_model.hpp"
#include "profile/host_links.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using plan::Schedule;
using ::testing::HasSubstr;

// Three steps under each plan in turn.
void expect_as_one_device(const model::JobSpec& job, const std::vector<plan::Plan>& plans) {
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  const auto steps = static_cast<std::int64_t>(3 * plans.size());
  std::vector<double> losses;
  on_ranks(plans.front().world_size(), [&](comm::Communicator& comm) {
    Trainer trainer(job, plans.front(), *dataset, comm);
    trainer.initialize();
    while (trainer.next_step() < steps) {
      const auto turn = static_cast<std::size_t>(trainer.next_step() / 3);
      if (turn > 0 && trainer.next_step() % 3 == 0) {
        EXPECT_FALSE(trainer.change_plan({}));
        EXPECT_TRUE(trainer.change_plan(comm.rank() == 0 ? std::optional(plans[turn]) : std::nullopt));
        EXPECT_EQ(plan::to_json(trainer.plan()), plan::to_json(plans[turn]));
      }
      const StepReport report = trainer.step();
      trainer.watch_speed();
      if (comm.rank() == 0) losses.push_back(report.loss);
    }
  });
  EXPECT_LT(worst_difference(losses, train_curve(job, {}, steps).losses), 1e-4) << plan::to_json(plans.back());
}

plan::Plan with_shares(plan::Plan plan, const std::vector<plan::Share>& shares) {
  for (plan::Stage& stage : plan.stages) stage.shares = shares;
  return plan;
}

TEST(Rebalance, AStepFollowsAnotherUnderAnyPlan) {
  const auto job = tiny_job();
  expect_as_one_device(job, {plan_of(job, {.dp = 4}), with_shares(plan_of(job, {.dp = 4, .zero = 1}), {{1, 1}, {3, 15}}),
                             plan_of(job, {.pp = 4, .micro_batches = 4}), plan_of(job, {.dp = 2, .tp = 2, .zero = 3, .micro_batches = 2})});
}

// A plan with a rank on each of four hosts.
plan::Plan on_four_hosts(plan::Plan plan, const std::vector<int>& order) {
  for (int rank = 0; rank < 4; ++rank) plan.ranks[static_cast<std::size_t>(rank)].node = rank;
  plan.stages.front().ranks = order;
  return plan;
}

// Also where the links are measured in between; sharded state changes its owners.
TEST(Rebalance, AStepFollowsAnotherWithTheRanksInAnotherOrder) {
  const auto job = tiny_job();
  const auto dataset = data::open_dataset(job.data, job.model, job.train.seed);
  for (const int zero : {0, 1, 2, 3}) {
    const plan::Plan first = on_four_hosts(plan_of(job, {.dp = 4, .zero = zero}), {0, 1, 2, 3});
    std::vector<double> losses;
    on_ranks(4, [&](comm::Communicator& comm) {
      Trainer trainer(job, first, *dataset, comm);
      trainer.initialize();
      while (trainer.next_step() < 9) {
        if (trainer.next_step() % 3 == 2) {
          const MeasuredLinks links = trainer.measure_links("lab");
          EXPECT_EQ(links.samples.size(), 6u);
          EXPECT_GT(links.steps, 0);
        }
        if (trainer.next_step() == 3 || trainer.next_step() == 6) {
          const std::vector<int> order = trainer.next_step() == 3 ? std::vector{0, 2, 1, 3} : std::vector{0, 1, 3, 2};
          EXPECT_TRUE(trainer.change_plan(on_four_hosts(first, order)));
        }
        const StepReport report = trainer.step();
        if (comm.rank() == 0) losses.push_back(report.loss);
      }
    });
    EXPECT_LT(worst_difference(losses, train_curve_of(job, first, 9).losses), 1e-6) << zero;
  }
}

TEST(Rebalance, ADelayedExchangeIsFinishedBefore) {
  auto job = tiny_job();
  job.train.optimizer.clip = 0;
  expect_as_one_device(
      job, {plan_of(job, {.dp = 2, .delayed_exchange = true}), plan_of(job, {.pp = 2, .micro_batches = 4, .schedule = Schedule::zb_h1}),
            plan_of(job, {.dp = 2, .pp = 1, .micro_batches = 2, .delayed_exchange = true})});
}

// As `parallel: {dp, pp, tp: 1}` says it, on a cluster that a file describes.
void fix(model::JobSpec& job, int dp, int pp) {
  job.parallel.kind = model::ParallelChoice::Kind::degrees;
  job.parallel.dp = dp;
  job.parallel.pp = pp;
  job.parallel.tp = 1;
  job.cluster.kind = model::ClusterChoice::Kind::file;
}

// Four hosts of one core and equal speed, one worker on each.
cluster::ClusterSpec four_hosts() {
  return cluster::read_cluster(ConfigNode::parse(
      "{name: hosts, groups: [{name: hosts, nodes: 4, devices_per_node: 1, inside: shm, network: {name: lab, bandwidth: 10 Gbit/s, "
      "latency: "
      "100 us}, device: {name: host, vendor: cpu, peak: {fp32: 50 GFLOP/s}, memory: 8 GiB, memory_bandwidth: 10 GB/s, cores: 1}}]}",
      "cluster"));
}

SpeedChange change(int rank, double ratio) { return {ratio > 1, "", rank, ratio}; }

std::vector<std::int64_t> samples_of(const plan::Plan& plan) {
  std::vector<std::int64_t> out(plan.ranks.size(), 0);
  for (const plan::Stage& stage : plan.stages) {
    std::size_t rank = 0;
    for (const plan::Share& share : plan.shares_of(stage))
      for (int i = 0; i < share.ranks; ++i, ++rank) out[static_cast<std::size_t>(stage.ranks[rank])] = share.samples / share.ranks;
  }
  return out;
}

TEST(Rebalance, ASlowHostTakesFewerSamplesAndAsManyAgainWhenItIsFast) {
  auto job = tiny_job();
  fix(job, 4, 1);
  const cluster::ClusterSpec cluster = four_hosts();
  const plan::Plan even = search::search(job, cluster, {}).best;
  Rebalancer rebalancer(job, cluster, {});
  EXPECT_FALSE(rebalancer.answer(even, {{true, "a link", -1, 1}}));
  const auto slow = rebalancer.answer(even, {change(2, 3)});
  ASSERT_TRUE(slow);
  EXPECT_THAT(slow->words, HasSubstr("rebalanced: blocks 0-"));
  EXPECT_THAT(cluster::speeds_of_hosts(slow->cluster), testing::ElementsAre(1, 1, testing::DoubleEq(1.0 / 3), 1));
  const auto samples = samples_of(slow->plan);
  EXPECT_LT(samples[2], samples[0]);
  EXPECT_EQ(samples[0], samples[3]);
  // The ranks stay where they are.
  for (std::size_t rank = 0; rank < 4; ++rank) EXPECT_EQ(slow->plan.ranks[rank].node, even.ranks[rank].node);
  // Nothing more is to be gained.
  EXPECT_FALSE(rebalancer.answer(slow->plan, {change(2, 1)}));
  const auto fast = rebalancer.answer(slow->plan, {change(2, 1.0 / 3)});
  ASSERT_TRUE(fast);
  EXPECT_EQ(samples_of(fast->plan), samples_of(even));
}

TEST(Rebalance, OfAPipelineBlocksMove) {
  auto job = model::read_job(
      ConfigNode::parse("name: deep\nmodel: {arch: llama, hidden: 64, layers: 12, heads: 4, kv_heads: 4, ffn: 96, seq: 32, vocab: 256}\n"
                        "data: {source: synthetic}\ntrain: {global_batch: 16}\n",
                        "deep.yaml"));
  fix(job, 1, 4);
  const cluster::ClusterSpec cluster = four_hosts();
  const plan::Plan even = search::search(job, cluster, {}).best;
  const auto slow = Rebalancer(job, cluster, {}).answer(even, {change(1, 2.5)});
  ASSERT_TRUE(slow);
  const auto blocks_of = [](const plan::Plan& plan, int rank) {
    int out = 0;
    for (const plan::Stage& stage : plan.stages)
      if (stage.ranks.front() == rank) out += stage.last_block() - stage.first_block();
    return out;
  };
  EXPECT_LT(blocks_of(slow->plan, 1), blocks_of(even, 1));
  const profile::Profile nothing;
  cost::CostModel cost_model(job.model, job.train, slow->cluster, nothing);
  EXPECT_LT(slow->plan.predicted->step.value, sim::predict(even, cost_model).step.value / 1.03);
}

// 10 Gbit/s between each two of four hosts but one.
std::vector<profile::CommSample> links(int slow_a, int slow_b, double rate) {
  std::vector<profile::CommSample> out;
  for (int a = 0; a < 4; ++a)
    for (int b = a + 1; b < 4; ++b) {
      profile::CommSample& sample = out.emplace_back();
      sample.operation = "send";
      sample.link = profile::pair_link("lab", a, b);
      sample.latency = Seconds(100e-6);
      sample.bandwidth = BytesPerSecond(a == slow_a && b == slow_b ? rate : 1.25e9);
    }
  return out;
}

TEST(Rebalance, RanksAreOrderedByTheLinksAsTheyAreNow) {
  auto job = tiny_job();
  fix(job, 4, 1);
  const cluster::ClusterSpec cluster = four_hosts();
  for (const bool known : {true, false}) {
    profile::Profile before;
    if (known) before.communication = links(-1, -1, 0);
    plan::Plan plan = search::search(job, cluster, before).best;
    ASSERT_THAT(plan.stages.front().ranks, testing::ElementsAre(0, 1, 2, 3));
    Rebalancer rebalancer(job, cluster, before);
    // A little noise is no reason.
    if (known) {
      EXPECT_EQ(rebalancer.take_links(plan, links(0, 1, 1.1e9)), "all as before");
    }
    EXPECT_FALSE(rebalancer.answer(plan, {}));
    EXPECT_THAT(rebalancer.take_links(plan, links(0, 1, 12.5e6)), HasSubstr("0.10 Gbit/s between hosts 0 and 1"));
    const auto slow = rebalancer.answer(plan, {});
    ASSERT_TRUE(slow);
    EXPECT_THAT(slow->plan.stages.front().ranks, testing::ElementsAre(0, 2, 1, 3));
    EXPECT_THAT(slow->words, HasSubstr("on ranks 0, 2, 1, 3; a step is expected to take "));
    EXPECT_EQ(slow->cluster.groups.front().network.bandwidth, cluster.groups.front().network.bandwidth);  // as the file says it
    plan::check(slow->plan, job, cluster);
    EXPECT_FALSE(rebalancer.answer(slow->plan, {}));
    // When it is fast again no order is better than this one, until another link is slow.
    EXPECT_EQ(rebalancer.take_links(slow->plan, links(-1, -1, 0)),
              "10.00 Gbit/s between hosts 0 and 1 (0.10 before), the others as before");
    EXPECT_FALSE(rebalancer.answer(slow->plan, {}));
    rebalancer.take_links(slow->plan, links(0, 2, 12.5e6));
    const auto again = rebalancer.answer(slow->plan, {});
    ASSERT_TRUE(again);
    EXPECT_THAT(again->plan.stages.front().ranks, testing::ElementsAre(0, 1, 2, 3));
  }
}

// A profile that was measured under these links, and who goes on with it, agree.
TEST(Rebalance, TheProfileFollowsTheLinks) {
  auto job = tiny_job();
  fix(job, 4, 1);
  const cluster::ClusterSpec cluster = four_hosts();
  profile::Profile before;
  before.communication = links(-1, -1, 0);
  profile::CommSample all_reduce;
  all_reduce.operation = "all_reduce";
  all_reduce.link = "lab";
  all_reduce.ranks = 4;
  all_reduce.latency = Seconds(1e-3);
  all_reduce.bandwidth = BytesPerSecond(1e9);
  before.communication.push_back(all_reduce);
  const plan::Plan plan = search::search(job, cluster, before).best;
  Rebalancer rebalancer(job, cluster, before);
  const auto rate = [&] { return rebalancer.profile().communication.back().bandwidth.value; };
  rebalancer.take_links(plan, links(0, 1, 12.5e6));
  EXPECT_DOUBLE_EQ(rate(), 1e9);  // there is a ring around it
  std::vector<profile::CommSample> slow = links(-1, -1, 0);
  for (profile::CommSample& sample : slow) sample.bandwidth = sample.bandwidth / 4;
  rebalancer.take_links(plan, slow);
  EXPECT_NEAR(rate(), 1e9 / 4, 1e7 * 4);
  EXPECT_FALSE(rebalancer.answer(plan, {}));  // no order is better
}

TEST(Rebalance, WorkersOfOneHostStay) {
  auto job = tiny_job();
  fix(job, 2, 1);
  job.cluster.kind = model::ClusterChoice::Kind::local;
  job.cluster.devices = 2;
  job.cluster.threads = 1;
  const cluster::ClusterSpec cluster = cluster::resolve(job.cluster);
  const plan::Plan plan = search::search(job, cluster, {}).best;
  EXPECT_FALSE(Rebalancer(job, cluster, {}).answer(plan, {change(1, 3)}));
}

}  // namespace
}  // namespace tessera::train
