// Internal to the search over blocks: the ways in which given ranks can run the blocks of their stages, of which none is better than
// another in every respect.
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

// What one outer choice may cost.
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

// The blocks [first, last) of one stage, of which a rank has so many micro-batches in flight.
struct Segment {
  int first = 0;
  int last = 0;
  double in_flight = 1;
  auto operator<=>(const Segment&) const = default;
};

// A way to run the blocks of a rank: sums over its blocks, the largest workspace.
struct StageEntry {
  double busy = 0;
  double warm_up = 0;
  double fixed = 0;
  double saved = 0;  // with all micro-batches that are in flight
  double workspace = 0;
  int option = 0;                      // of the last block
  const StageEntry* before = nullptr;  // without it; owned by the fronts
  double bytes() const { return fixed + saved + workspace; }
};

// Not thread-safe. The cost model and the options must outlive it.
class StageFronts {
 public:
  // `chunks`: stages of a rank. `front` throws Effort::OutOfEffort when there is none left.
  StageFronts(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks, plan::Schedule schedule, int chunks,
              const StageOptions& options, Effort& effort, std::pmr::memory_resource& memory);

  // Each by itself over the options of a block.
  struct Least {
    double busy = kNever;
    double warm_up = kNever;
    double bytes = kNever;  // with one micro-batch in flight
  };
  // `repeat`: index into ModelSpec::repeats.
  const Least& least(int repeat) const { return least_[repeat]; }
  // What a message of one micro-batch in both directions adds.
  double busy_of(double seconds) const { return static_cast<double>(ranks_.micro_batches) * seconds - warm_up_of(seconds); }
  double warm_up_of(double seconds) const { return shares_.backward * seconds; }

  // An outer choice begins. `rough`: its fronts are a few good entries, found by pricing memory, most within one block's change of
  // the best.
  void start(bool rough);
  // It has ended: no front or entry is valid any more.
  void forget();
  // The least busy + fill + price x bytes over a block's options with `in_flight` micro-batches in flight: by repeat, by price.
  const std::vector<std::vector<double>>& priced(double in_flight) { return at(in_flight).least; }
  // The least workspace over a block's options: by repeat.
  const std::vector<double>& workspaces(double in_flight) { return at(in_flight).workspaces; }
  const std::vector<double>& prices() const { return prices_; }  // of a byte, in seconds
  // The ways to run a rank's stages, in model order, that fit the device's memory and of which none has both more busy and more fill than
  // another. Those of more than `most` busy and fill together may be left out. Between two calls of start(), calls for the same blocks must
  // not raise `most`.
  const std::vector<const StageEntry*>& front(std::span<const Segment> segments, double most);
  // The strategies of an entry's blocks, in order.
  std::vector<plan::Strategy> strategies(const StageEntry& entry, std::span<const Segment> segments) const;
  // Bytes of a micro-batch that an entry's blocks save: by segment.
  std::vector<double> saved(const StageEntry& entry, std::span<const Segment> segments) const;
  // What a rank may hold of its states, activations and workspace.
  double room(std::span<const Segment> segments) const;

 private:
  // Entries of a range, by the layout of its last block.
  using Chain = std::vector<std::vector<const StageEntry*>>;
  // Of each segment: runs of a repeat, the micro-batches in flight, and whether stages stand before and behind.
  using SegmentKey = std::tuple<std::vector<std::pair<int, int>>, double, bool, bool>;
  using Key = std::vector<SegmentKey>;

  // An option under the schedule.
  struct Priced {
    double busy = 0;  // m (f + b) - fill + once
    double warm_up = 0;
  };
  // What holds for a number of micro-batches in flight; memory is then one figure.
  struct InFlight {
    std::vector<std::vector<int>> options;   // by repeat: indices of those that no other covers
    std::vector<double> workspaces;          // by repeat: the least
    std::vector<double> least_bytes;         // by repeat: of fixed and saved
    std::vector<double> bytes_before;        // by block: the same summed over the blocks before it, once a front is asked for
    std::vector<std::vector<double>> least;  // busy + fill + price x bytes over the options: by repeat, by price
    // The same summed over the blocks before each, by price and block, once a front is asked for.
    std::vector<std::vector<double>> sums;
    std::map<std::pair<int, std::size_t>, std::vector<int>> cheapest;  // by layout and price: by repeat
  };
  // A segment, what holds for it, and the least of the segments behind it.
  struct Range {
    Segment segment;
    const InFlight* tables = nullptr;
    std::vector<double> least_behind;  // busy + fill + price x bytes: by price
    double bytes_behind = 0;
  };
  // Segments and what they must keep to.
  struct Target {
    std::vector<Range> ranges;
    double most = 0;
    double limit = 0;
    double workspace = 0;             // that some block needs however it is run
    bool memory = true;               // false: leave it aside
    std::vector<std::size_t> prices;  // that bound best
    int shared_tp = 0;                // of the blocks that share a parameter; 0: any
  };

  // At least, once all blocks of the target are in.
  static double bytes(const StageEntry& entry, const Target& target) {
    return entry.fixed + entry.saved + std::max(entry.workspace, target.workspace);
  }
  // At most: of micro-batches in flight under a schedule with halves some are between them.
  double saved_of(const BlockOption& option) const {
    return splits_backward_ ? std::max(option.saved, option.saved_for_weight) : option.saved;
  }
  InFlight& at(double in_flight);
  InFlight made_at(double in_flight) const;
  void sum_up(InFlight& tables) const;
  Target target_of(std::span<const Segment> segments, double most);
  Key key_of(std::span<const Segment> segments) const;
  // No way to run the blocks from `from` on, of a range, and those behind it after `entry` has less busy and fill together.
  double bound(const Target& target, const Range& range, int from, const StageEntry& entry, std::size_t price) const;
  StageEntry empty() const;
  // `entry` with one more block; `from`: the layout of the block before, in its stage.
  StageEntry with(const StageEntry& entry, const Target& target, const Range& range, int block, int from, int option);
  std::vector<const StageEntry*> entries(const Target& target);
  std::vector<const StageEntry*> rough_entries(const Target& target);
  const std::vector<int>& cheapest(double in_flight, int layout, std::size_t price);
  // The ways to run the target, of which none has both more busy and more fill than another.
  std::vector<const StageEntry*> thinned(Target& target);
  // Whether the blocks that share a parameter have the same tp.
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
