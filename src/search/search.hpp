// The one search: the best plan for a job on a cluster, its runners-up, and what each of them would cost.
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

// How many workers of how many threads a plan may use.
struct WorkerShape {
  int workers = 1;
  int threads = 1;
  bool operator==(const WorkerShape&) const = default;
};
// Those of one CPU host that the job and the cluster leave open, fewest workers first: what is worth measuring. With
// `cluster: auto` every way to share the cores evenly.
std::vector<WorkerShape> worker_shapes(const model::JobSpec& job, const cluster::ClusterSpec& cluster);

struct SearchOptions {
  int top = 5;                            // runners-up to keep, the best of each family
  std::vector<std::string> vendors = {};  // only devices of these vendors, on which the trainer runs the plan; empty: all
  bool front = false;                     // keep SearchResult::front; slower, as a bound on the time alone then rules out less
  // Blocks' options that each search over blocks may try, about six million a second, a simulated plan counting as some thousand; then the
  // best so far counts.
  std::int64_t effort = 12'000'000;
  // The same by the clock, in place of the effort, for everything that search does; it goes on until there is some plan. 0: no limit.
  double seconds = 0;
  const Clock* clock = &real_clock();
  Watch* watch = nullptr;  // outlives the search
  // Of a model with tables: threads of the run's own parameter servers by host, in the order of cluster::speeds_of_hosts. Empty: none where
  // the job names servers, and else what is best, by what the profile says of rows.
  std::vector<int> serving = {};
  // Of a job with data.lengths: tokens of the samples of some batches, as training draws them, by which plans are priced then. Empty: they
  // are not known, and plans are priced as if all samples had model.seq.
  std::vector<std::int64_t> lengths = {};
};
// A considered plan in few words.
struct FrontPoint {
  std::string family;  // as Candidate's
  std::string detail;  // what else sets it apart: "zero 1, 8 micro-batches of 2 samples, recompute full"
  Seconds step;
  Bytes memory;  // on the fullest device (accelerators) or host (CPU workers)
  Bytes limit;   // what there is for workers
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
  std::int64_t considered = 0;        // plans that were priced or ruled out by a bound
  std::vector<Candidate> close;  // accelerators: further good plans, of families that have a better one, for the simulator to choose among
  std::vector<Candidate> too_large;  // do not fit the memory; the smallest first
  // Step time against memory over the considered plans, those too large included: no other is both faster and lower in
  // memory / limit. Fastest first. Points within 1 % of memory of a faster one are left out.
  std::vector<FrontPoint> front;
  // Accelerators: no plan of the space is faster, in seconds. 0: not known.
  double bound = 0;
};

// Searches over blocks (search/block_search.hpp) on the devices that may be in one plan. Accelerators whose times calibrations say: every
// block its own strategy, beside hand-written templates; families are the best plans of parts of the space. CPU workers, and accelerators
// in 32 bits: degrees of the whole plan, priced by the simulator; families are the degrees. Honours what `job.parallel` fixes. Throws
// resource_exhausted when nothing fits: how much is missing, what would fit; invalid_config when the fixed degrees cannot divide, with the
// nearest valid ones; interrupted when it was stopped before there was any plan.
SearchResult search(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                    const SearchOptions& options = {});

// Orders the replicas of the plan's stages such that the rings of those that exchange gradients avoid slow links (profile::shortest_ring).
// Each rank keeps its place, its samples and what it is predicted to hold. The plan stays as it is where the profile lacks a pair of its
// hosts, where different ranks hold its stages, since these would then send to each other over other links, and where a stage has several
// layouts, experts that are spread or hybrid sharding, for which the order says who shares what.
void order_by_links(plan::Plan& plan, const cluster::ClusterSpec& cluster, const profile::Profile& profile);

// What SearchOptions::serving has to say for the servers of a plan.
std::vector<int> serving_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster);

// Where train.optimizer.clip alone keeps the exchange of gradients at the end of the plan's steps, and without clipping it would be delayed
// into the next step: a line that says so, and what a step would take. Empty otherwise.
std::string clipping_text(const plan::Plan& plan, const model::JobSpec& job, const cluster::ClusterSpec& cluster,
                          const profile::Profile& profile);

// The plan as a table and a drawing for the terminal: blocks x ranks, the predicted step by parts, memory against the
// limit, what of it no measured step reaches, the runners-up and what each loses where. `columns`: of the terminal, 0 for no limit.
std::string explain(const SearchResult& result, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, int columns = 0);

}  // namespace tessera::search
