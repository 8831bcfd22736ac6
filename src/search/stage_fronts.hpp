// Internal to the search over blocks: the ways in which one stage of given ranks can run a range of blocks, of which none is
// better than another in every respect.
#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <memory_resource>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "cost/cost_model.hpp"
#include "cost/warm_up.hpp"
#include "search/block_search.hpp"

namespace tessera::search {

// What all blocks of a plan have in a uniform space; 0: each its own.
struct FixedDegrees {
  int tensor = 0;
  int zero = 0;
  auto operator<=>(const FixedDegrees&) const = default;
};

// What a stage stands on, and how many micro-batches a step has.
struct StageRanks {
  int devices = 0;  // as CostModel knows them
  int width = 1;
  std::int64_t micro_batches = 1;
  FixedDegrees fixed = {};
  auto operator<=>(const StageRanks&) const = default;
};

// A way to run one block.
struct BlockOption {
  plan::Strategy strategy;
  int layout = 0;      // equal for equal dp, cp and tp
  double forward = 0;  // seconds of a micro-batch
  double backward = 0;
  double once = 0;   // seconds of a step
  double fixed = 0;  // bytes
  double saved = 0;  // bytes of a micro-batch
  double workspace = 0;
  double tied_once = 0;  // where the stage does not hold the model's first block, which owns tied parameters
  double tied_fixed = 0;
};

// What one outer choice may cost.
struct Effort {
  struct OutOfEffort {};

  std::int64_t used = 0;  // blocks' options tried
  std::int64_t most = 0;  // 0: no limit
  const Clock* clock = nullptr;
  std::optional<Seconds> deadline = {};
  void spend() {
    ++used;
    if (most > 0 && used > most) throw OutOfEffort{};
  }
  void watch() const {
    if (deadline && clock->now() > *deadline) throw OutOfEffort{};
  }
};

// Those of every block that no other covers under any schedule.
struct StageOptions {
  std::vector<plan::Strategy> layouts;           // dp, cp and tp of each
  std::vector<std::vector<BlockOption>> blocks;  // by index into ModelSpec::repeats
  bool possible = true;                          // every block has one
};
// So many replicas as one domain of the inside link holds, over which ZeRO may shard with copies across; 0: those are all or do not divide.
int sharding_group(const cost::CostModel& cost_model, int devices, const plan::Strategy& strategy);
// Whether a block can be cut among so many context-parallel ranks.
bool context_divides(const model::BlockSpec& block, std::int64_t degree);
StageOptions options_of(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks);

// A way to run a range of blocks: sums over its blocks, the largest workspace.
struct StageEntry {
  double busy = 0;
  double warm_up = 0;
  double fixed = 0;
  double saved = 0;
  double workspace = 0;
  int option = 0;                      // of the last block
  const StageEntry* before = nullptr;  // without it; owned by the fronts
  double bytes(double held) const { return fixed + held * saved + workspace; }
};

// Not thread-safe. The problem and the loads must outlive it.
class StageFronts {
 public:
  // `front` throws Effort::OutOfEffort when there is none left.
  StageFronts(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks, plan::Schedule schedule,
              const StageOptions& options, Effort& effort, std::pmr::memory_resource& memory);

  // Over the options of a block (index into ModelSpec::repeats).
  double least_busy(int repeat) const { return least_busy_[static_cast<std::size_t>(repeat)]; }
  double least_warm_up(int repeat) const { return least_warm_up_[static_cast<std::size_t>(repeat)]; }
  // Bytes, with one micro-batch in flight.
  double least_bytes(int repeat) const { return least_bytes_[static_cast<std::size_t>(repeat)]; }
  // What a message of one micro-batch in both directions adds.
  double busy_of(double seconds) const { return static_cast<double>(ranks_.micro_batches) * seconds - warm_up_of(seconds); }
  double warm_up_of(double seconds) const { return shares_.backward * seconds; }

  // An outer choice begins. `rough`: its fronts are a few good entries, found by pricing memory, most within one block's change of
  // the best.
  void start(bool rough);
  // It has ended: no front or entry is valid any more.
  void forget();
  // The least busy + fill + price x bytes over a block's options with `held` micro-batches in flight: by repeat, by price.
  const std::vector<std::vector<double>>& priced(double held) { return at(held).least; }
  // The least workspace over a block's options: by repeat.
  const std::vector<double>& workspaces(double held) { return at(held).workspaces; }
  const std::vector<double>& prices() const { return prices_; }  // of a byte, in seconds
  // Blocks [first, last) with `held` micro-batches in flight: the entries that fit the device's memory of which none has both more
  // busy and more fill than another. Those of more than `most` busy and fill together may be left out; for equal ranges `most` never
  // rises between two starts.
  const std::vector<const StageEntry*>& front(int first, int last, double held, double most);
  // The strategies of an entry's blocks, in order.
  std::vector<plan::Strategy> strategies(const StageEntry& entry, int first, int last) const;

 private:
  // Entries of a range, by the layout of its last block.
  using Chain = std::vector<std::vector<const StageEntry*>>;
  // Runs of a repeat, the micro-batches held, and whether stages stand before and behind.
  using Key = std::tuple<std::vector<std::pair<int, int>>, double, bool, bool>;

  // An option under the schedule.
  struct Priced {
    double busy = 0;  // m (f + b) - fill + once
    double warm_up = 0;
  };
  // What holds for a number of micro-batches held; memory is then one figure.
  struct Held {
    std::vector<std::vector<int>> options;   // by repeat: indices of those that no other covers
    std::vector<double> workspaces;          // by repeat: the least
    std::vector<double> least_bytes;         // by repeat: of fixed and saved
    std::vector<double> bytes_before;        // by block: the same summed over the blocks before it, once a front is asked for
    std::vector<std::vector<double>> least;  // busy + fill + price x bytes over the options: by repeat, by price
    // The same summed over the blocks before each, by price and block, once a front is asked for.
    std::vector<std::vector<double>> sums;
    std::map<std::pair<int, std::size_t>, std::vector<int>> cheapest;  // by layout and price: by repeat
  };
  // A range and what it must keep to.
  struct Target {
    int first = 0;
    int last = 0;
    double held = 0;
    double most = 0;
    double limit = 0;
    double workspace = 0;             // that some block of the range needs however it is run
    bool memory = true;               // false: leave it aside
    std::vector<std::size_t> prices;  // that bound best
  };

  // At least, once all blocks of the range are in.
  static double bytes(const StageEntry& entry, const Target& target) {
    return entry.fixed + target.held * entry.saved + std::max(entry.workspace, target.workspace);
  }
  Held& at(double held);
  Held made_at(double held) const;
  void sum_up(Held& held) const;
  // No way to run blocks [from, target.last) after `entry` has less busy and fill together.
  double bound(const Held& held, const Target& target, int from, const StageEntry& entry, std::size_t price) const;
  StageEntry empty() const;
  // `entry` with one more block; `from`: the layout of the block before, in its stage.
  StageEntry with(const StageEntry& entry, const Target& target, int block, int from, int option);
  std::vector<const StageEntry*> entries(const Target& target);
  std::vector<const StageEntry*> rough_entries(const Target& target);
  const std::vector<int>& cheapest(double held, int layout, std::size_t price);
  // By block of the range.
  std::vector<int> cheapest(const Target& target, int layout, std::size_t price);
  const StageEntry* built(const Target& target, const std::vector<int>& options);
  Chain extended(const Held& held, const Target& target, const Chain& before, int block);
  double reshard(int repeat, int before, int after);
  double room(int first, int last) const;

  const BlockProblem& problem_;
  cost::CostModel& cost_model_;
  Effort& effort_;
  StageRanks ranks_;
  const StageOptions& listed_;
  cost::WarmUp shares_;
  std::int64_t samples_ = 1;
  double limit_ = 0;                         // bytes for states, activations, workspace and buffers
  double host_ = 0;                          // seconds of each micro-batch
  std::vector<std::vector<Priced>> priced_;  // by repeat and option
  std::vector<double> least_busy_;
  std::vector<double> least_warm_up_;
  std::vector<double> least_bytes_;
  std::vector<std::vector<double>> reshards_;  // by repeat, by layouts before and after; negative: not known yet
  std::pmr::deque<StageEntry> entries_;
  std::vector<double> prices_;  // of a byte, in seconds
  std::map<double, Held> held_;
  bool rough_ = false;
  std::map<Key, std::vector<const StageEntry*>> fronts_;
};

}  // namespace tessera::search
