// Internal: the plans that divide.
#pragma once

#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "cost/cost_model.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"

namespace tessera::search {

// So many workers on so many nodes of one group, and of others beside it.
struct WorkerLayout {
  int group = 0;
  int nodes = 1;
  int per_node = 1;
  int threads = 1;
  std::vector<WorkerLayout> beside = {};
  int world() const {
    int out = nodes * per_node;
    for (const WorkerLayout& other : beside) out += other.world();
    return out;
  }
  // Those of one group each.
  std::vector<WorkerLayout> parts() const {
    std::vector<WorkerLayout> out = beside;
    out.insert(out.begin(), {group, nodes, per_node, threads, {}});
    return out;
  }
};

// One point of the space, before its blocks are cut into stages.
struct Point {
  WorkerLayout layout;
  int dp = 1;
  int tp = 1;
  int pp = 1;
  std::int64_t micro_batches = 1;
  model::Recompute recompute = model::Recompute::none;
  std::vector<plan::Share> shares = {};  // of replicas on several groups
};
// What does not change how blocks are cut.
struct Variant {
  plan::Schedule schedule = plan::Schedule::one_f_one_b;
  int zero = 0;
  bool delayed_exchange = false;
  double exchanged_early = 1;
};

// Shares of the gradients that a delayed exchange sends as they become complete.
inline constexpr double kEarly[] = {1, 0.75, 0.5, 0.25};

// Worker layouts that the job's `cluster:` and `parallel:` leave open, fewest workers first.
std::vector<WorkerLayout> layouts(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<std::string>& vendors);
// Throws invalid_config at the line of `parallel` when what is fixed there cannot divide.
void check_fixed(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::vector<WorkerLayout>& layouts);

// Simplest first.
std::vector<Point> points(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const WorkerLayout& layout);
std::vector<Variant> variants(const model::JobSpec& job, const Point& point);

// "dp2 x tp2 x pp4", "one worker".
std::string family_of(const Point& point);

// The point's plan with the blocks cut at `cuts` (the first block of each stage, then the number of blocks).
plan::Plan plan_of(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Point& point, const Variant& variant,
                   const std::vector<int>& cuts);
// What each block costs one rank per micro-batch at least: forward, backward and tensor-parallel exchange, the shorter of exchanges alone
// and in turn with computing. Of several groups, the fastest.
std::vector<double> block_seconds(const model::JobSpec& job, const Point& point, cost::CostModel& cost_model);

}  // namespace tessera::search
