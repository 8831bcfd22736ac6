// Internal to the search over blocks: Pareto fronts of the ways in which given ranks can run the blocks of their stages.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory_resource>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "cost/cost_model.hpp"
#include "cost/warm_up.hpp"
#include "search/stage_options.hpp"

namespace tessera::search {

// The effort that an outer choice may cost.
struct Effort {
  struct OutOfEffort {};

  std::int64_t used = 0;  // blocks' options tried
  std::int64_t most = 0;  // 0: no limit
  const Clock* clock = nullptr;
  std::optional<Seconds> deadline = {};
  const std::atomic<bool>* stop = nullptr;
  void spend() {
    ++used;
    if (most > 0 && used > most) throw OutOfEffort{};
  }
  void watch() const {
    if (is_set(stop) || (deadline && clock->now() > *deadline)) throw OutOfEffort{};
  }
};

// The blocks [first, last) of one stage, with the number of micro-batches that its rank has in flight.
struct Segment {
  int first = 0;
  int last = 0;
  double in_flight = 1;
  auto operator<=>(const Segment&) const = default;
};

// A way to run the blocks of a rank. Members are sums over its blocks; `workspace` is the largest.
struct StageEntry {
  double busy = 0;
  double warm_up = 0;
  double fixed = 0;
  double saved = 0;  // by all micro-batches in flight
  double workspace = 0;
  int option = 0;                      // of the last block
  const StageEntry* before = nullptr;  // the entry without the last block; owned by the fronts
  double bytes() const { return fixed + saved + workspace; }
};

// Not thread-safe. The cost model and the options must outlive it.
class StageFronts {
 public:
  // `chunks`: stages of a rank. front() throws Effort::OutOfEffort when the effort is used up.
  StageFronts(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks, plan::Schedule schedule, int chunks,
              const StageOptions& options, Effort& effort, std::pmr::memory_resource& memory);

  // The least value of each member by itself, over a block's options.
  struct Least {
    double busy = kNever;
    double warm_up = kNever;
    double bytes = kNever;  // with one micro-batch in flight
  };
  // `repeat`: index into ModelSpec::repeats.
  const Least& least(int repeat) const { return least_[repeat]; }
  // What the messages of one micro-batch, in both directions, add to busy and to warm-up.
  double busy_of(double seconds) const { return static_cast<double>(ranks_.micro_batches) * seconds - warm_up_of(seconds); }
  double warm_up_of(double seconds) const { return shares_.backward * seconds; }

  // Begins an outer choice. `rough`: a Lagrangian heuristic finds a few good entries, usually one block's option away from the optimum.
  void start(bool rough);
  // Ends the outer choice; its fronts and entries become invalid.
  void forget();
  // By repeat and price: the least busy + fill + price x bytes over a block's options, with `in_flight` micro-batches in flight.
  const std::vector<std::vector<double>>& priced(double in_flight) { return at(in_flight).least; }
  // By repeat: the least workspace over a block's options.
  const std::vector<double>& workspaces(double in_flight) { return at(in_flight).workspaces; }
  const std::vector<double>& prices() const { return prices_; }  // of a byte, in seconds
  // The Pareto front, in busy against fill, of the ways to run a rank's stages (in model order) that fit the device's memory. Ways whose
  // busy and fill together exceed `most` may be left out. Precondition: between two calls of start(), calls for the same blocks must not
  // raise `most`.
  const std::vector<const StageEntry*>& front(std::span<const Segment> segments, double most);
  // The strategies of an entry's blocks, in order.
  std::vector<plan::Strategy> strategies(const StageEntry& entry, std::span<const Segment> segments) const;
  // By segment: bytes of a micro-batch that an entry's blocks save.
  std::vector<double> saved(const StageEntry& entry, std::span<const Segment> segments) const;
  // Bytes that a rank's states, activations and workspace may take.
  double room(std::span<const Segment> segments) const;

 private:
  // By the layout of the last block: the entries of a range.
  using Chain = std::vector<std::vector<const StageEntry*>>;
  // For each segment: its runs of a repeat, the micro-batches in flight, and whether stages come before and after it.
  using SegmentKey = std::tuple<std::vector<std::pair<int, int>>, double, bool, bool>;
  using Key = std::vector<SegmentKey>;

  // An option under the schedule.
  struct Priced {
    double busy = 0;  // m (f + b) - fill + once
    double warm_up = 0;
  };
  // Tables for one number of micro-batches in flight; memory is then a single figure.
  struct InFlight {
    std::vector<std::vector<int>> options;   // by repeat: indices of the options that no other one dominates
    std::vector<double> workspaces;          // by repeat: the least
    std::vector<double> least_bytes;         // by repeat: of fixed and saved
    std::vector<double> bytes_before;        // by block: the same summed over the blocks before it, once a front is asked for
    std::vector<std::vector<double>> least;  // busy + fill + price x bytes over the options: by repeat, by price
    // The same summed over the blocks before each, by price and block, once a front is asked for.
    std::vector<std::vector<double>> sums;
    std::map<std::pair<int, std::size_t>, std::vector<int>> cheapest;  // by layout and price: by repeat
  };
  // A segment, its tables, and the least values of the segments after it.
  struct Range {
    Segment segment;
    const InFlight* tables = nullptr;
    std::vector<double> least_behind;  // busy + fill + price x bytes: by price
    double bytes_behind = 0;
  };
  // Segments and their limits.
  struct Target {
    std::vector<Range> ranges;
    double most = 0;
    double limit = 0;
    double workspace = 0;             // that some block needs under any option
    bool memory = true;               // false: memory is left aside
    std::vector<std::size_t> prices;  // the prices whose bounds are best
    int shared_tp = 0;                // tp of the blocks that share a parameter; 0: any
  };

  // A lower bound on an entry's bytes once it has all blocks of the target.
  static double bytes(const StageEntry& entry, const Target& target) {
    return entry.fixed + entry.saved + std::max(entry.workspace, target.workspace);
  }
  // An upper bound: under schedules that split the backward pass, some micro-batches in flight are between its halves.
  double saved_of(const BlockOption& option) const {
    return splits_backward_ ? std::max(option.saved, option.saved_for_weight) : option.saved;
  }
  InFlight& at(double in_flight);
  InFlight made_at(double in_flight) const;
  void sum_up(InFlight& tables) const;
  Target target_of(std::span<const Segment> segments, double most);
  Key key_of(std::span<const Segment> segments) const;
  // A lower bound on busy and fill together of every way to continue `entry` with the blocks from `from` on, of a range and those after it.
  double bound(const Target& target, const Range& range, int from, const StageEntry& entry, std::size_t price) const;
  StageEntry empty() const;
  // `entry` plus one block; `from`: the layout of the block before it in its stage.
  StageEntry with(const StageEntry& entry, const Target& target, const Range& range, int block, int from, int option);
  std::vector<const StageEntry*> entries(const Target& target);
  std::vector<const StageEntry*> rough_entries(const Target& target);
  const std::vector<int>& cheapest(double in_flight, int layout, std::size_t price);
  // The Pareto front of the target's ways, in busy against fill.
  std::vector<const StageEntry*> thinned(Target& target);
  // Whether all blocks that share a parameter have the same tp.
  bool shares_alike(const StageEntry& entry, std::span<const Segment> segments) const;
  // By block of the target.
  std::vector<int> cheapest(const Target& target, int layout, std::size_t price);
  const StageEntry* built(const Target& target, const std::vector<int>& options);
  Chain extended(const Target& target, const Range& range, const Chain& before, int block);
  double reshard(int repeat, int before, int after);
  int repeat_of(int block) const { return cost_model_.repeat_of()[block]; }
  // visit(segment, block, option), from the last block to the first.
  template <typename Visit>
  void for_options(const StageEntry& entry, std::span<const Segment> segments, const Visit& visit) const;

  cost::CostModel& cost_model_;
  Effort& effort_;
  StageRanks ranks_;
  const StageOptions& listed_;
  cost::WarmUp shares_;
  std::int64_t samples_ = 1;
  double limit_ = 0;                           // bytes for states, activations, workspace and buffers
  double host_ = 0;                            // seconds of each micro-batch
  std::vector<std::vector<Priced>> priced_;    // by repeat and option
  std::vector<Least> least_;                   // by repeat
  std::vector<std::vector<double>> reshards_;  // by repeat, by layouts before and after; negative: not known yet
  std::pmr::deque<StageEntry> entries_;
  std::vector<double> prices_;           // of a byte, in seconds
  std::vector<bool> shares_parameters_;  // by repeat
  int chunks_ = 1;
  bool splits_backward_ = false;
  std::map<double, InFlight> in_flight_;
  bool rough_ = false;
  std::map<Key, std::vector<const StageEntry*>> fronts_;
};

}  // namespace tessera::search
