// The search: the best plan for a job on a cluster, and its runners-up.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"
#include "search/watch.hpp"

namespace tessera::search {

// A number of CPU workers, and the threads of each.
struct WorkerShape {
  int workers = 1;
  int threads = 1;
  bool operator==(const WorkerShape&) const = default;
};
// The shapes that the job and the cluster allow on one CPU host, fewest workers first: those worth measuring. With `cluster: auto`, every
// way to share the cores evenly.
std::vector<WorkerShape> worker_shapes(const model::JobSpec& job, const cluster::ClusterSpec& cluster);

struct SearchOptions {
  int top = 5;                            // runners-up to keep: the best plan of each family
  std::vector<std::string> vendors = {};  // use only devices of these vendors, and plans that the trainer runs; empty: all
  bool front = false;                     // fill SearchResult::front; slower, because a bound on the time alone rules out less
  // The number of blocks' options that each search over blocks may try, at about six million a second; a simulated plan counts as some
  // thousand. After that the best plan so far is taken.
  std::int64_t effort = 12'000'000;
  // A limit by the clock for the whole search, instead of `effort`; the search goes on until there is some plan. 0: no limit.
  double seconds = 0;
  const Clock* clock = &real_clock();
  Watch* watch = nullptr;  // must outlive the search
  // For a model with tables: threads of the run's own parameter servers, by host in the order of cluster::speeds_of_hosts. Empty: no
  // servers if the job names some; otherwise the search chooses, if the profile has measured rows.
  std::vector<int> serving = {};
  // For a job with data.lengths: the lengths, in tokens, of the samples of some batches as training draws them; plans are priced by these.
  // Empty: plans are priced as if all samples had model.seq tokens.
  std::vector<std::int64_t> lengths = {};
};
// A considered plan in few words.
struct FrontPoint {
  std::string family;  // Candidate::family
  std::string detail;  // what else sets it apart: "zero 1, 8 micro-batches of 2 samples, recompute full"
  Seconds step;
  Bytes memory;  // on the fullest device (accelerators) or host (CPU workers)
  Bytes limit;   // that the workers may use
};
struct Candidate {
  plan::Plan plan;     // with prediction
  std::string family;  // "dp2", "pp2", "tp2 x pp2", ...
  Seconds step() const { return plan.predicted->step; }
};
struct SearchResult {
  plan::Plan best;
  std::string best_family;
  std::vector<Candidate> runners_up;  // the best of every other family, by predicted step time
  std::int64_t considered = 0;        // plans that were priced, or ruled out by a bound
  std::vector<Candidate> close;       // accelerators: further good plans of the same families, for the simulator to choose among
  std::vector<Candidate> too_large;   // exceed the memory; the smallest comes first
  // The Pareto front of step time against memory (as a share of its limit) over the considered plans, including those that are too large.
  // Fastest first; points within 1 % of memory of a faster one are left out.
  std::vector<FrontPoint> front;
  // Accelerators: no plan of the space is faster, in seconds. 0: unknown.
  double bound = 0;
};

// Searches over blocks (search/block_search.hpp) on devices that may work together in one plan. On calibrated accelerators every block has
// its own strategy, hand-written templates compete too, and a family is a part of the space. On CPU workers, and on accelerators in 32
// bits, degrees hold for the whole plan, the simulator prices it, and a family is a set of degrees. Honours what `job.parallel` fixes.
// Throws resource_exhausted when nothing fits, with what is missing and what would fit; invalid_config when fixed degrees cannot divide,
// with the nearest valid ones; interrupted when stopped before there was a plan.
SearchResult search(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                    const SearchOptions& options = {});

// Reorders the replicas of the plan's stages so that the rings that exchange gradients avoid slow links (profile::shortest_ring). Each rank
// keeps its place, its samples and its predicted memory. Leaves the plan as it is if the profile lacks a pair of its hosts; if different
// ranks hold its stages, because these would then send over other links; and if a stage has several layouts, experts spread over ranks or
// hybrid sharding, where the order says who shares what.
void order_by_links(plan::Plan& plan, const cluster::ClusterSpec& cluster, const profile::Profile& profile);

// The value of SearchOptions::serving that gives a plan's servers.
std::vector<int> serving_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster);

// If only train.optimizer.clip keeps the gradient exchange from being delayed into the next step: a line that says so and what a step would
// take without clipping. Otherwise empty.
std::string clipping_text(const plan::Plan& plan, const model::JobSpec& job, const cluster::ClusterSpec& cluster,
                          const profile::Profile& profile);

// Explains a plan on the terminal: a table and a drawing (blocks x ranks), the parts of the predicted step, memory against its limit, what
// is extrapolated, and where each runner-up loses. `columns`: width of the terminal, 0 for no limit.
std::string explain(const SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, int columns = 0);

}  // namespace tessera::search
