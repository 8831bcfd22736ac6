// internal: what the routers of a run have chosen, and the samples and experts that are placed by it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "base/units.hpp"
#include "comm/comm.hpp"
#include "data/data.hpp"
#include "model/job.hpp"
#include "nn/route_counts.hpp"
#include "plan/plan.hpp"
#include "train/placement.hpp"

namespace tessera::train {

// The samples of a step by their places in the batch.
struct StepSamples {
  std::vector<data::Draw> draws;
  std::shared_ptr<const std::vector<std::int64_t>> numbers;  // the sample in each place; null: that of the same number
  double crossing = 0;                                       // copies that are expected to leave their hosts, where samples are placed
  Seconds solving{};                                         // how long that took
};

// The new label of each expert, by block.
using ExpertLabels = std::map<int, std::vector<int>>;

// Sums over all ranks since training began or was resumed. Bytes are those of rows, their weights and the gradients of both.
struct PlacementReport {
  std::int64_t steps = 0;
  std::int64_t placed = 0;  // of them, those whose samples were placed
  Bytes crossed;            // from host to host, in all steps
  Bytes crossed_placed;     // in those whose samples were placed
  Bytes predicted;          // for these
  Seconds solving{};        // on rank 0, beside the step before
  std::int64_t relabellings = 0;
  std::int64_t moved_experts = 0;
  Bytes moved;  // weights and optimizer state of these
};

// All ranks make the same calls and find the same answers: they sum what they have counted, and solve in whole numbers. One thread uses it;
// what placing() returns may run on another.
class Placer {
 public:
  Placer(const model::JobSpec& job, const plan::Plan& plan, const std::vector<program::Program>& programs, const data::Dataset& dataset,
         comm::Communicator& comm);

  nn::RouteCounts& routes() { return routes_; }
  // Places a step's samples by what is known now; as they were drawn where nothing is.
  std::function<StepSamples()> placing(std::vector<data::Draw> draws) const;
  // After a step of these samples. Experts that are to be moved before the next one.
  std::optional<ExpertLabels> after_step(const StepSamples& samples);
  PlacementReport report() const;

 private:
  void add_own(const StepSamples& samples);
  void share();
  std::optional<ExpertLabels> move_experts();
  std::size_t index(std::size_t row, int one) const {
    return row * static_cast<std::size_t>(seats_.classes()) + static_cast<std::size_t>(one);
  }

  const data::Dataset& dataset_;
  const model::PlacementSpec spec_;
  const std::shared_ptr<const Seats> held_seats_;
  const Seats& seats_;
  const std::int64_t copies_a_token_;   // of all blocks
  const std::int64_t bytes_a_copy_;     // in the passes of a block
  const std::int64_t bytes_an_expert_;  // weights and optimizer state
  comm::Group all_;
  const int class_;  // this rank's
  nn::RouteCounts routes_;
  std::vector<std::int64_t> window_;   // own counts since they were summed: those of tokens, then [blocks, experts, classes]
  std::vector<std::int64_t> tokens_;   // of all ranks
  std::vector<std::int64_t> experts_;  // likewise, since experts_steps_ steps
  std::int64_t experts_steps_ = 0;
  std::int64_t since_moved_ = 0;  // steps since tables were begun
  std::shared_ptr<const TokenRates> rates_;
  std::int64_t crossed_ = 0, crossed_placed_ = 0;  // own copies
  double predicted_ = 0;
  PlacementReport report_;
};

}  // namespace tessera::train
