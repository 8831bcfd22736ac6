// Internal to the search over blocks: the best plan of one outer choice, and lower bounds for it.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <optional>
#include <tuple>
#include <vector>

#include "cost/cost_model.hpp"
#include "search/outer_choices.hpp"
#include "search/stage_fronts.hpp"

namespace tessera::search {

// Times that differ by less count as equal.
inline constexpr double kEqual = 1e-9;

struct Found {
  const Outer* outer = nullptr;
  double step = kNever;
  plan::Plan plan;
  std::vector<int> cuts = {};  // in a uniform space: the first block of each stage, then the number of blocks

  // Times that differ by less than one part in a million are equal; then the simpler plan wins.
  bool better_than(const Found& other) const {
    const auto rounded = [](double seconds) { return std::llround(std::log(seconds) * 1e6); };
    return std::tuple(rounded(step), outer->simplicity(), cuts) < std::tuple(rounded(other.step), other.outer->simplicity(), other.cuts);
  }
};

// A way to run the last stages of a plan.
struct Tail {
  double busy = 0;     // of the busiest of them
  double warm_up = 0;  // of all
  const StageEntry* entry = nullptr;
  int end = 0;  // of the first of them
  const Tail* next = nullptr;
};

using AllOptions = std::map<StageRanks, StageOptions>;

// The state of one search thread. The problem and the options must outlive it; the options of an outer choice must be listed before the
// solver is asked about it.
class OuterSolver {
 public:
  OuterSolver(const BlockProblem& problem, const AllOptions& options, const std::vector<cost::StageDevices>& devices);
  cost::CostModel& cost_model() { return cost_model_; }
  Effort& effort() { return effort_; }
  // Whether every block has an option.
  bool possible(const Outer& outer) const {
    return std::ranges::all_of(outer.groups, [&](const GroupCut& cut) { return options_.at(outer.ranks(cut)).possible; });
  }
  // A lower bound in seconds that leaves memory aside; infinite when some block has no option.
  double bound(const Outer& outer);
  // A Lagrangian lower bound that takes memory into account. With any share a of each stage, and however the blocks are dealt to stages
  // that keep to their memory,
  //   sum a (busy + fill + price (bytes - memory)) <= X sum a + max a F,  X the busiest stage, F the sum of fill,
  // and the left side is at least the sum of each block's least value. A stage's workspace is at least the least of all blocks, and in one
  // stage that of the block which needs most.
  double bound_with_memory(const Outer& outer);
  // The best plan of the outer choice, unless it is slower than `incumbent`.
  std::optional<Found> solve(const Outer& outer, double incumbent, bool rough);
  // Whether an exact solve considers every plan of the outer choice.
  bool exhausts(const Outer& outer);

  // The following are of uniform spaces.

  // No step is shorter than all micro-batches through a stage and one of them through those before it, forward and back: with the work p_s
  // of the stages before stage s, T >= p_s + m w_s. The cut with the least T has them all equal, so what is left of T, T - p_s, shrinks by
  // a factor of 1 - 1/m from stage to stage. Where the weight half of a backward pass may wait, no stage is shorter than the mean.
  double least_step(const Outer& outer);
  // The best plan of the outer choice by the simulator. The blocks are cut in every way if those are few, or else as the closed form
  // prefers.
  std::optional<Found> simulate(const Outer& outer, double incumbent);
  // Moves the ends of stages by a block as long as the simulated step becomes shorter: the cut that the closed form prefers need not be the
  // fastest.
  Found refined(Found found);
  // The plan with its passes in an order tuned to its stages' times, if the space has such orders and it is faster; otherwise `found`.
  Found tuned(Found found);
  // The best of other cuts, each with an order tuned to it, or `found`: an order that suits one cut says little about another.
  Found recut(Found found);

 private:
  using Kinds = std::vector<StageFronts*>;
  // By pipeline rank: the fronts of its kind of devices, and its group cut.
  struct Stages {
    Kinds kinds;
    std::vector<const GroupCut*> cuts;
  };
  // Selects the outer choice that the functions below are about, until forget().
  void start(const Outer& outer, bool rough);
  void forget();
  // The stages, in `tails`, whose busiest stage and fill together take least, if that is at most `most`; else nullptr.
  const Tail* best_tail(const Outer& outer, double most, std::deque<Tail>& tails);
  static std::vector<int> cuts_of(const Tail* tail);
  // At least the seconds of both passes of a micro-batch through a block at the degrees of a uniform space.
  double passes(const Outer& outer, const GroupCut& cut, int repeat);
  // least_step() for a given cut.
  double least_step(const Outer& outer, const std::vector<int>& cuts);
  // The two functions below return nothing if a stage does not fit its memory.
  std::optional<Found> simulated(const Outer& outer, const std::vector<int>& cuts, bool delayed);
  std::optional<plan::Plan> plan_of(const Outer& outer, const std::vector<int>& cuts);
  Found predicted(const Outer& outer, plan::Plan plan, const std::vector<int>& cuts);
  // Replaces `best`, a plan of the same outer choice, if `plan` is faster. Returns whether it did.
  bool replace_if_shorter(Found& best, plan::Plan plan, const std::vector<int>& cuts);

  // The fronts of an outer choice's groups.
  Kinds kinds_of(const Outer& outer);
  // The speed of each group's stages relative to the first group's. Bounds hold with any shares; these make them nearly tight.
  std::vector<double> shares_of(const Kinds& kinds) const;
  // Bytes that a pipeline rank may hold on top of its process.
  double room(const GroupCut& cut) const {
    return problem_.space.memory * cost_model_.memory_limit(cut.devices) - cost_model_.process_bytes(cut.devices);
  }
  // Whether the blocks exceed the memory of all stages together, however they are dealt.
  bool too_large(const Outer& outer);
  double least_warm_up(const Kinds& kinds) const;
  // The sum over all blocks of the least that each takes on any of `count` kinds: `least(index of the kind, repeat)`.
  template <typename Least>
  double sum_of_least(std::size_t count, const Least& least) const {
    double out = 0;
    for (std::size_t r = 0; r < problem_.model.repeats.size(); ++r) {
      double each = kNever;
      for (std::size_t kind = 0; kind < count; ++kind) each = std::min(each, least(kind, static_cast<int>(r)));
      out += problem_.model.repeats[r].count * each;
    }
    return out;
  }
  double host(const Outer& outer) const;

  StageFronts& fronts(const Outer& outer, const GroupCut& cut);
  double message(const Outer& outer, const GroupCut& from, const GroupCut& to, int block);
  // A plan of the outer choice whose stages have no blocks yet. Each stage here is a pipeline rank.
  plan::Plan frame_of(const Outer& outer);
  plan::Plan plan_of(const Outer& outer, const Tail* tail);

  // The rest is for outer choices with several stages a rank.

  // A way to run the blocks of every pipeline rank.
  struct RankEntries {
    double step = kNever;
    std::vector<int> cuts;
    std::vector<const StageEntry*> entries;      // by pipeline rank
    std::vector<std::vector<Segment>> segments;  // by pipeline rank
  };
  std::optional<RankEntries> best_entries(const Outer& outer, double most, bool rough);
  // The best way with the blocks cut so, if it takes at most `most` seconds without the host's.
  std::optional<RankEntries> best_of_cut(const Outer& outer, const std::vector<int>& cuts, double most);
  // The front's entries that fit the memory at every moment of the schedule.
  std::vector<const StageEntry*> fitting(const Outer& outer, int pipeline_rank, StageFronts& fronts, std::vector<Segment>& segments,
                                         double most);
  std::vector<std::vector<int>> first_cuts(const Outer& outer);
  plan::Plan plan_of(const Outer& outer, const RankEntries& ranks);
  // By pipeline rank: the micro-batches in flight of each chunk, at the moments that decide whether memory suffices.
  using Peaks = std::vector<std::vector<std::vector<int>>>;
  const Peaks& peaks_of(const Outer& outer);

  const BlockProblem& problem_;
  const AllOptions& options_;
  Effort effort_;
  cost::CostModel cost_model_;
  Stages stages_;                                  // of the selected outer choice
  std::pmr::unsynchronized_pool_resource memory_;  // for the fronts' entries, which come and go with every outer choice
  std::map<std::tuple<StageRanks, plan::Schedule, int>, std::unique_ptr<StageFronts>> fronts_;
  std::map<std::tuple<plan::Schedule, int, int, std::int64_t>, Peaks> peaks_;
};

}  // namespace tessera::search
