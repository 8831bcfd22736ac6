// More hardware is never planned slower: devices may be left out.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <set>

#include "base/random.hpp"
#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "search/block_search.hpp"
#include "search/search.hpp"
#include "search/templates.hpp"

namespace tessera::search {
namespace {

constexpr double kTolerance = 1e-3;
constexpr int kPairs = 12;
constexpr int kNodes[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 28, 29, 31, 32, 33, 63, 64, 65, 127, 128, 129};
constexpr std::size_t kKinds = 4;
constexpr int kOrders = 2;

double step_on(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  const SearchResult result = search(job, cluster, {}, {.top = 0, .vendors = {}});
  EXPECT_NO_THROW(check(result.best, job, cluster));
  return result.best.predicted->step.value;
}

// The first of so many nodes are used, each as a whole, and every device once.
void expect_first_nodes(const plan::Plan& plan, const cluster::ResourceGroup& group) {
  std::set<std::pair<int, int>> used;
  int last = 0;
  for (const plan::RankPlace& place : plan.ranks) {
    EXPECT_TRUE(used.emplace(place.node, place.device).second);
    last = std::max(last, place.node);
  }
  EXPECT_EQ(static_cast<int>(used.size()), (last + 1) * group.devices_per_node);
}

TEST(MoreHardware, OneMoreNodeIsNeverPlannedSlower) {
  const auto job = plan::preset_job("llama-2-7b", 128);
  double before = 0;
  for (const int nodes : kNodes) {
    const auto cluster = plan::gpu_cluster(nodes, 8, "h100-sxm");
    const SearchResult result = search(job, cluster, {}, {.top = 0, .vendors = {}});
    EXPECT_NO_THROW(check(result.best, job, cluster));
    expect_first_nodes(result.best, cluster.groups.front());
    const double step = result.best.predicted->step.value;
    if (before > 0) {
      EXPECT_LE(step, before * (1 + kTolerance)) << nodes << " nodes";
    }
    before = step;
  }
}

// Of CPU hosts: plans that the simulator prices.
TEST(MoreHardware, OneMoreHostIsNeverPlannedSlower) {
  const auto job = plan::job_of({.layers = 12, .hidden = 1024, .heads = 16, .kv_heads = 16, .ffn = 4096, .seq = 512, .global_batch = 24});
  double before = std::numeric_limits<double>::infinity();
  for (int hosts = 1; hosts <= 9; ++hosts) {
    const double step = step_on(job, plan::cpu_cluster(4, hosts));
    EXPECT_LE(step, before * (1 + kTolerance)) << hosts << " hosts";
    before = step;
  }
}

TEST(MoreHardware, ANodeThatNothingDividesIsLeftOut) {
  const auto job = plan::preset_job("llama-2-7b", 128);
  const auto whole = plan::gpu_cluster(36, 8, "h100-sxm");
  const auto more = plan::gpu_cluster(37, 8, "h100-sxm");
  const SearchResult result = search(job, more, {}, {.top = 0, .vendors = {}});
  EXPECT_LE(result.best.predicted->step.value, step_on(job, whole) * (1 + kTolerance));
  ASSERT_LT(result.best.world_size(), more.device_count());
  const int idle = more.device_count() - result.best.world_size();
  EXPECT_NE(explain(result, job.model, more).find(text("unused: ", idle, " of the 296 of gpu, with which no faster plan was found")),
            std::string::npos);
  // The same plan reads back and is checked against the cluster that has more.
  EXPECT_NO_THROW(check(plan::read_plan(ConfigNode::parse(to_json(result.best), "plan.json")), job, more));
}

// 28 nodes make 28 stages, 29 make nothing of the kind, and 24 would be fewer than there are.
TEST(MoreHardware, TemplatesLeaveOutNodesToo) {
  const auto job = plan::preset_job("llama-2-70b", 1024);
  double before = std::numeric_limits<double>::infinity();
  for (const int nodes : {28, 29}) {
    const auto cluster = plan::gpu_cluster(nodes, 8, "h100-sxm");
    const BlockProblem problem{.model = job.model, .cluster = cluster, .global_batch = 1024};
    cost::CostModel cost_model(job.model, cluster, problem.precision);
    const auto best = best_template(problem, {.schedules = {plan::Schedule::zb_v}, .zero = {1}}, cost_model);
    ASSERT_TRUE(best);
    EXPECT_NO_THROW(check(*best, job, cluster));
    EXPECT_EQ(best->world_size(), 28 * 8);
    EXPECT_LE(best->predicted->step.value, before);
    before = best->predicted->step.value;
  }
}

TEST(MoreHardware, FixedDegreesUseEveryDevice) {
  const auto cluster = plan::gpu_cluster(3, 8, "h100-sxm");
  const auto job = plan::preset_job("llama-2-7b", 96, "{tp: 8}");
  EXPECT_EQ(search(job, cluster, {}, {.top = 0, .vendors = {}}).best.world_size(), 24);
  EXPECT_THROW(search(plan::preset_job("llama-2-7b", 100, "{tp: 8, pp: 1}"), cluster, {}, {.top = 0, .vendors = {}}), Error);
}

TEST(MoreHardware, MemoryLinksAndNodesNeverMakeAPlanSlower) {
  Random random(20261123);
  const auto one_of = [&](std::vector<int> items) { return items[static_cast<std::size_t>(random.below(items.size()))]; };
  const char* devices[] = {"a100-40", "a100-80", "h100-sxm", "l40s"};
  for (int pair = 0; pair < kPairs; ++pair) {
    const auto job = plan::job_of({.layers = one_of({4, 10, 24}),
                                   .hidden = one_of({1024, 2048, 4096}),
                                   .heads = 16,
                                   .kv_heads = 16,
                                   .ffn = 8192,
                                   .seq = one_of({512, 2048}),
                                   .vocab = 32000,
                                   .global_batch = one_of({24, 64, 96, 100}),
                                   .precision = "bf16"});
    const auto cluster = plan::gpu_cluster(one_of({1, 2, 3, 5, 6, 11}), one_of({4, 8}), devices[random.below(std::size(devices))]);
    const double step = step_on(job, cluster);
    cluster::ClusterSpec more = cluster;
    switch (pair % 3) {
      case 0: ++more.groups.front().nodes; break;
      case 1: more.groups.front().device.memory = more.groups.front().device.memory * 2; break;
      default: more.groups.front().network.bandwidth = more.groups.front().network.bandwidth * 2;
    }
    EXPECT_LE(step_on(job, more), step * (1 + kTolerance)) << cluster::to_yaml(more);
  }
}

TEST(MoreHardware, ASecondGroupIsNeverPlannedSlower) {
  const auto job = plan::preset_job("llama-2-7b", 64);
  const auto cluster = [](int nodes) {
    return cluster::read_cluster(
        ConfigNode::parse(text("name: two\nbetween: rdma-100g\ngroups:\n"
                               "  - {name: h, device: h100-sxm, nodes: 3, devices_per_node: 8, inside: nvlink4, network: rdma-400g}\n"
                               "  - {name: a, device: a100-80, nodes: ",
                               nodes, ", devices_per_node: 8, inside: nvlink3, network: rdma-100g}\n"),
                          "cluster.yaml"));
  };
  const auto alone = cluster::read_cluster(ConfigNode::parse(
      "name: one\ngroups:\n  - {name: h, device: h100-sxm, nodes: 3, devices_per_node: 8, inside: nvlink4, network: rdma-400g}\n",
      "cluster.yaml"));
  double before = step_on(job, alone);
  for (const int nodes : {1, 2, 3}) {
    const double step = step_on(job, cluster(nodes));
    EXPECT_LE(step, before * (1 + kTolerance)) << nodes;
    before = step;
  }
}

// Of four kinds, in any order, and most of the devices work.
TEST(MoreHardware, GroupsOfOtherKindsAreNeverPlannedSlower) {
  // fp16: a V100 has no bf16.
  const auto job = model::read_job(ConfigNode::parse(
      "name: t\nmodel: {preset: llama-2-13b}\ndata: {source: synthetic}\ntrain: {global_batch: 192, precision: fp16}\n", "train.yaml"));
  const std::vector<std::string> groups = {
      "device: h100-sxm, nodes: 3, devices_per_node: 8, inside: nvlink4, network: rdma-400g, adapters: 8",
      "device: a100-80, nodes: 4, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 8",
      "device: l40s, nodes: 5, devices_per_node: 4, inside: pcie4, network: rdma-100g, adapters: 2",
      "device: v100-32, nodes: 6, devices_per_node: 8, inside: nvlink2, network: rdma-100g, adapters: 4"};
  for (int way = 0; way < kOrders; ++way) {
    const std::vector<std::size_t> order = way == 0 ? std::vector<std::size_t>{0, 1, 2, 3} : std::vector<std::size_t>{3, 2, 1, 0};
    std::string yaml = "name: many\nbetween: rdma-200g\ngroups:\n";
    double before = std::numeric_limits<double>::infinity();
    for (std::size_t count = 0; count < kKinds; ++count) {
      yaml += text("  - {name: g", order[count], ", ", groups[order[count]], "}\n");
      const auto cluster = cluster::read_cluster(ConfigNode::parse(yaml, "cluster.yaml"));
      const SearchResult result = search(job, cluster, {}, {.top = 0, .vendors = {}});
      EXPECT_NO_THROW(check(result.best, job, cluster));
      const double step = result.best.predicted->step.value;
      EXPECT_LE(step, before * (1 + kTolerance)) << yaml;
      EXPECT_GE(result.best.world_size(), cluster.device_count() * 3 / 4) << yaml;
      before = step;
    }
  }
}

// Their numbers of nodes go together in more ways than can be gone through, also where few of these make a plan.
TEST(MoreHardware, GroupsOfHundredsOfNodesArePlannedWithoutAPipelineToo) {
  const auto job = model::read_job(ConfigNode::parse(
      "name: t\nmodel: {preset: llama-2-7b}\ndata: {source: synthetic}\ntrain: {global_batch: 1024, precision: fp16}\n", "train.yaml"));
  std::string yaml = "name: many\nbetween: rdma-200g\ngroups:\n";
  for (const char* device : {"h100-sxm", "a100-80", "a100-40", "ascend910b", "v100-32"})
    yaml += text("  - {name: ", device, ", device: ", device,
                 ", nodes: 250, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 4}\n");
  const SearchResult result =
      search(job, cluster::read_cluster(ConfigNode::parse(yaml, "cluster.yaml")), {}, {.vendors = {}, .effort = 100'000});
  std::set<std::string> families = {result.best_family};
  for (const Candidate& candidate : result.runners_up) families.insert(candidate.family);
  EXPECT_TRUE(families.contains("no pipeline"));
}

}  // namespace
}  // namespace tessera::search
