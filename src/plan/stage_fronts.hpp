// Internal to the search over blocks: the ways in which one stage of given ranks can run a range of blocks, of which none is
// better than another in every respect.
#pragma once

#include <deque>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "plan/block_search.hpp"
#include "plan/closed_form.hpp"
#include "plan/loads.hpp"

namespace tessera::plan {

// What decides the options of a stage's blocks.
struct StageKind {
  int group = 0;
  int width = 1;                   // ranks
  std::int64_t micro_batches = 1;
  Schedule schedule = Schedule::one_f_one_b;
  auto operator<=>(const StageKind&) const = default;
};

// A way to run one block.
struct BlockOption {
  Strategy strategy;
  int layout = 0;                  // equal for equal dp, cp and tp
  double busy = 0;                 // m (f + b) - fill + once a step
  double fill = 0;
  double fixed = 0;                // bytes
  double saved = 0;                // bytes of a micro-batch
  double workspace = 0;
  double tied_busy = 0;            // where the stage does not hold the model's first block, which owns tied parameters
  double tied_fixed = 0;
};

// A way to run a range of blocks: sums over its blocks, the largest workspace.
struct StageEntry {
  double busy = 0;
  double fill = 0;
  double fixed = 0;
  double saved = 0;
  double workspace = 0;
  int option = 0;                  // of the last block
  const StageEntry* before = nullptr;  // without it; owned by the fronts
  double bytes(double held) const { return fixed + held * saved + workspace; }
};

// Not thread-safe. The problem and the loads must outlive it.
class StageFronts {
 public:
  StageFronts(const BlockProblem& problem, Loads& loads, const StageKind& kind);

  bool possible() const { return possible_; }          // every block has an option
  // Over the options of a block (index into ModelSpec::repeats).
  double least_busy(int repeat) const { return least_busy_[static_cast<std::size_t>(repeat)]; }
  double least_fill(int repeat) const { return least_fill_[static_cast<std::size_t>(repeat)]; }
  // What a message of one micro-batch in both directions adds.
  double busy_of(double seconds) const { return static_cast<double>(kind_.micro_batches) * seconds - fill_of(seconds); }
  double fill_of(double seconds) const { return shares_.backward * seconds; }

  // Blocks [first, last) with `held` micro-batches in flight: the entries that fit the device's memory of which none has both more
  // busy and more fill than another. Those of more than `most` busy and fill together may be left out; `most` never rises from
  // call to call.
  const std::vector<const StageEntry*>& front(int first, int last, double held, double most);
  // The strategies of an entry's blocks, in order.
  std::vector<Strategy> strategies(const StageEntry& entry, int first, int last) const;

 private:
  // Of a range, by the layout of its last block.
  using Chain = std::vector<std::vector<const StageEntry*>>;
  // Runs of a repeat, and the micro-batches held (negative: memory is left aside).
  using Key = std::pair<std::vector<std::pair<int, int>>, double>;

  void list_options(int repeat);
  void add_options(int repeat, Strategy strategy, std::vector<BlockOption>& out);
  int layout_of(const Strategy& strategy);
  Key key_of(int first, int last, double held) const;
  const Chain& chain(int first, int last, double held, double most);
  Chain extended(const Chain& before, int first, int last, double held, double most);
  double resplit(int repeat, int before, int after);
  double least_bytes(int first, int last, double held) const;
  double room(int first, int last) const;

  const BlockProblem& problem_;
  Loads& loads_;
  StageKind kind_;
  Fill shares_;
  std::int64_t samples_ = 1;
  double limit_ = 0;               // bytes for states, activations, workspace and buffers
  double host_ = 0;                // seconds of each micro-batch
  bool possible_ = true;
  std::vector<Strategy> layouts_;  // dp, cp and tp of each
  std::vector<std::vector<BlockOption>> options_;   // by repeat
  std::vector<double> least_busy_;
  std::vector<double> least_fill_;
  std::map<std::tuple<int, int, int>, double> resplits_;
  std::deque<StageEntry> entries_;
  std::map<Key, Chain> chains_;
  std::map<std::pair<Key, std::pair<bool, bool>>, std::vector<const StageEntry*>> fronts_;  // and whether stages stand before and behind
};

}  // namespace tessera::plan
