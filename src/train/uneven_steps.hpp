// internal: what this rank computes on where the samples of a step have different lengths, laid out and filled beside the step before it.
#pragma once

#include <functional>
#include <future>
#include <map>

#include "comm/comm.hpp"
#include "data/data.hpp"
#include "plan/uneven_batch.hpp"
#include "program/program.hpp"
#include "train/executor.hpp"

namespace tessera::train {

// The passes of a rank: rows on the CPU, of which it has its part, and the ranks that have the other parts of each (none: an empty group).
struct UnevenPasses {
  std::vector<nn::Batch> batches;
  std::vector<comm::Group> context_groups;
};

// Not thread-safe; the dataset must outlive it.
class UnevenSteps {
 public:
  // The plan has lengths (plan::Plan::lengths).
  UnevenSteps(const data::Dataset& dataset, const plan::Plan& plan, const model::ModelSpec& model, comm::Communicator& comm);

  // This rank's program of a step in which it makes so many passes. Weights lie, and gradients are reduced, as under the plan.
  program::Program program(std::int64_t passes) const;
  program::Program evaluation(std::int64_t passes) const;

  // This rank's passes over the training samples of a step. A rank that has nothing to do makes one pass over padding. Those that begin()
  // began, when they are ready, or made now.
  UnevenPasses take(std::int64_t step);
  void begin(std::int64_t step);
  // The same for validation samples.
  UnevenPasses validation(std::int64_t first, std::int64_t count) const;
  // The tokens of all training samples of a step.
  std::int64_t tokens(std::int64_t step) const;

 private:
  using Fill = std::function<void(std::int64_t sample, const std::vector<data::Row>& rows)>;
  UnevenPasses load(std::int64_t step) const;
  UnevenPasses load(const std::vector<std::int64_t>& lengths, const Fill& fill) const;
  nn::Batch row_of(const plan::SharedPass& pass, const std::vector<std::int64_t>& lengths, const Fill& fill) const;

  const data::TextDataset& dataset_;
  const model::ModelSpec& model_;
  const int rank_;
  const std::int64_t global_batch_;
  const std::int64_t tokens_;  // that a rank holds at once
  const plan::Lengths lengths_;
  plan::Plan apart_;                   // no pass of which shares sequences
  int index_ = 0;                      // of this rank in the stage
  std::map<int, comm::Group> groups_;  // by degree
  std::int64_t begun_step_ = 0;
  std::future<UnevenPasses> begun_;  // waits for its thread when it is dropped
};

}  // namespace tessera::train
