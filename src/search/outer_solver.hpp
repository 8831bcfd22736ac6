// Internal to the search over blocks: the best plan of one outer choice, and what none of them is faster than.
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

  // Times are compared to about one part in a million; what is equal then is decided by simplicity.
  bool better_than(const Found& other) const {
    const auto rounded = [](double seconds) { return std::llround(std::log(seconds) * 1e6); };
    return std::tuple(rounded(step), outer->simplicity(), cuts) < std::tuple(rounded(other.step), other.outer->simplicity(), other.cuts);
  }
};

// The last stages of a plan.
struct Tail {
  double busy = 0;     // of the busiest of them
  double warm_up = 0;  // of all
  const StageEntry* entry = nullptr;
  int end = 0;  // of the first of them
  const Tail* next = nullptr;
};

using AllOptions = std::map<StageRanks, StageOptions>;

// Everything that one thread remembers. The problem and the options must outlive it; those of an outer choice are listed before it is asked
// about.
class OuterSolver {
 public:
  OuterSolver(const BlockProblem& problem, const AllOptions& options, const std::vector<cost::StageDevices>& devices);
  cost::CostModel& cost_model() { return cost_model_; }
  Effort& effort() { return effort_; }
  // Whether every block has an option.
  bool possible(const Outer& outer) const {
    return std::ranges::all_of(outer.groups, [&](const GroupCut& cut) { return options_.at(outer.ranks(cut)).possible; });
  }
  // No plan of the outer choice is faster, with memory left aside. Infinite when a block has no option.
  double bound(const Outer& outer);
  // Lagrange's bound on the same with memory. With a share a for each stage, however the blocks are dealt to stages that keep to
  // their memory,
  //   sum a (busy + fill + price (bytes - memory)) <= X sum a + max a F,  X the busiest stage, F the sum of fill,
  // and the left side is at least what each block takes at its best. A stage's workspace is at least the least of all blocks, and of one
  // stage that of the block which needs most.
  double bound_with_memory(const Outer& outer);
  // The best plan of the outer choice if it is not slower than `incumbent`.
  std::optional<Found> solve(const Outer& outer, double incumbent, bool rough);
  // Whether an exact solve of the outer choice leaves no plan of it out.
  bool exhausts(const Outer& outer);

  // The following are of uniform spaces.

  // No step is shorter than all micro-batches through a stage and one of them through those before it, forward and back: with the work p_s
  // of the stages before stage s, T >= p_s + m w_s. The cut with the least T has them all equal, so what is left of T, T - p_s, shrinks by
  // a factor of 1 - 1/m from stage to stage. Where the weight half of a backward pass may wait, no stage is shorter than the mean.
  double least_step(const Outer& outer);
  // The best of the outer choice by the simulator, cut in every way if those are few, or else as the closed form likes best.
  std::optional<Found> simulate(const Outer& outer, double incumbent);
  // The cut that is best by the closed form need not be the fastest: moves the ends of stages by a block as long as that is faster.
  Found refined(Found found);
  // The same with passes in an order made for the stages' times, where the space has such orders and that is faster.
  Found tuned(Found found);
  // The same with the blocks cut otherwise, each way with an order made for it: one that was made for one cut says little of another.
  Found recut(Found found);

 private:
  using Kinds = std::vector<StageFronts*>;
  // By pipeline rank: the fronts of its kind, and what it stands on.
  struct Stages {
    Kinds kinds;
    std::vector<const GroupCut*> cuts;
  };
  // The outer choice whose plans are asked about from here on, until forget().
  void start(const Outer& outer, bool rough);
  void forget();
  // The stages of which the busiest and the fill take least together, and no more than `most`; in `tails`.
  const Tail* best_tail(const Outer& outer, double most, std::deque<Tail>& tails);
  static std::vector<int> cuts_of(const Tail* tail);
  // Seconds of both passes of a micro-batch through a block at the degrees of a uniform space, at least.
  double passes(const Outer& outer, const GroupCut& cut, int repeat);
  // The same bound with the blocks cut so.
  double least_step(const Outer& outer, const std::vector<int>& cuts);
  // Nothing where a stage does not fit its memory; so the next.
  std::optional<Found> simulated(const Outer& outer, const std::vector<int>& cuts, bool delayed);
  std::optional<plan::Plan> plan_of(const Outer& outer, const std::vector<int>& cuts);
  Found predicted(const Outer& outer, plan::Plan plan, const std::vector<int>& cuts);
  // `best`: a plan of the same outer choice. Whether it was replaced.
  bool replace_if_shorter(Found& best, plan::Plan plan, const std::vector<int>& cuts);

  // Of the groups of an outer choice.
  Kinds kinds_of(const Outer& outer);
  // How fast the stages of each group run the model, those of the first being 1. Bounds hold with any shares; these are near the best.
  std::vector<double> shares_of(const Kinds& kinds) const;
  // Bytes that a pipeline rank may hold besides its process.
  double room(const GroupCut& cut) const {
    return problem_.space.memory * cost_model_.memory_limit(cut.devices) - cost_model_.process_bytes(cut.devices);
  }
  // Whether the blocks do not fit all stages' memory together, however they are dealt.
  bool too_large(const Outer& outer);
  double least_warm_up(const Kinds& kinds) const;
  // Over all blocks, of what each takes at least on one of `count` kinds: `least(index of the kind, repeat)`.
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
  // What a plan of the outer choice is, but for its stages' blocks. Each stage here is a pipeline rank.
  plan::Plan frame_of(const Outer& outer);
  plan::Plan plan_of(const Outer& outer, const Tail* tail);

  // Of outer choices with several stages a rank.

  // How each pipeline rank runs its blocks.
  struct RankEntries {
    double step = kNever;
    std::vector<int> cuts;
    std::vector<const StageEntry*> entries;      // by pipeline rank
    std::vector<std::vector<Segment>> segments;  // by pipeline rank
  };
  std::optional<RankEntries> best_entries(const Outer& outer, double most, bool rough);
  // The best with the blocks cut so, of no more than `most` seconds without the host's.
  std::optional<RankEntries> best_of_cut(const Outer& outer, const std::vector<int>& cuts, double most);
  // Of those that fit at every moment of the schedule.
  std::vector<const StageEntry*> fitting(const Outer& outer, int pipeline_rank, StageFronts& fronts, std::vector<Segment>& segments,
                                         double most);
  std::vector<std::vector<int>> first_cuts(const Outer& outer);
  plan::Plan plan_of(const Outer& outer, const RankEntries& ranks);
  // Micro-batches in flight by chunk, at the moments that decide: by pipeline rank.
  using Peaks = std::vector<std::vector<std::vector<int>>>;
  const Peaks& peaks_of(const Outer& outer);

  const BlockProblem& problem_;
  const AllOptions& options_;
  Effort effort_;
  cost::CostModel cost_model_;
  Stages stages_;                                  // of the outer choice that has been started
  std::pmr::unsynchronized_pool_resource memory_;  // of the fronts' entries, which come and go with every outer choice
  std::map<std::tuple<StageRanks, plan::Schedule, int>, std::unique_ptr<StageFronts>> fronts_;
  std::map<std::tuple<plan::Schedule, int, int, std::int64_t>, Peaks> peaks_;
};

}  // namespace tessera::search
