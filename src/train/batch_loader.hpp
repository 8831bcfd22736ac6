// internal: this rank's samples of a step, made by several threads, beside the step before it.
#pragma once

#include <functional>
#include <future>

#include "data/data.hpp"
#include "program/program.hpp"
#include "train/executor.hpp"

namespace tessera::train {

// Not thread-safe; the dataset must outlive it.
class BatchLoader {
 public:
  // Fills the fields of one of the step's samples, or returns false for one that is not there. Called from several threads.
  using FillSample = std::function<bool(std::int64_t sample, const std::vector<data::Row>& rows)>;

  BatchLoader(const data::Dataset& dataset, int threads) : fields_(dataset.fields()), threads_(threads) {}

  // By cut and micro-batch: whole samples on the CPU, with their first_sample and no seed. Cuts that hold the same samples share the
  // tensors. Throws what `fill` throws.
  Batches load(const program::Program& program, const FillSample& fill) const;

  // Begins to load what take() of the same step will ask for, and returns that. One step at a time: a step that was begun and is not taken
  // is dropped.
  std::shared_future<Batches> begin(std::int64_t step, const program::Program& program, FillSample fill);
  // The samples of a step: those that were begun, when they are ready, or loaded now.
  Batches take(std::int64_t step, const program::Program& program, const FillSample& fill);

 private:
  std::vector<data::Field> fields_;
  int threads_;
  std::int64_t begun_step_ = 0;
  std::shared_future<Batches> begun_;  // waits for its thread when it is dropped
};

}  // namespace tessera::train
