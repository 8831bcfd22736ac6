// Internal: one block of a model with inputs and gradients of its own, to time its passes.
#pragma once

#include <ATen/core/Generator.h>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/job.hpp"
#include "nn/block.hpp"

namespace tessera::train {

at::ScalarType type_of(model::Precision precision);
// Uniform in [-0.5, 0.5).
at::Tensor random_tensor(const std::vector<std::int64_t>& shape, at::ScalarType type, at::Generator& random);

// Random samples of what the model reads: tokens and targets, with those of a decoder between them; images and labels; or rows and labels.
// `counted`: the share of targets that count; fewer than all count where tokens are masked.
nn::Batch random_batch(const model::ModelSpec& model, std::int64_t samples, double counted = 1);

// Weights, gradients and activations of so many bytes have left the caches by the time that a step returns to them.
constexpr double kBeyondCaches = 64 << 20;

// Random parameters for all blocks that are timed: to make new ones would take longer than a pass of a small one.
class Weights {
 public:
  explicit Weights(const model::JobSpec& job);
  // Back to back, as the trainer binds them. Other `copy`s are other parameters, as far as there are as many.
  std::vector<nn::Parameter> of(const model::BlockInstance& instance, int tensor_parallel, int copy = 0) const;

 private:
  at::Tensor values_;  // in the precision of computation
  at::Tensor grads_;
};

// Less of a sample tells little of the whole.
constexpr std::int64_t kLeastPositions = 64;
// Whether a block may be timed with a part of the positions of its samples.
bool may_be_cut_short(const model::BlockSpec& block);

class TimedBlock {
 public:
  // `positions`: the first ones of each sample, of a block that may be cut short; 0: all.
  TimedBlock(const model::JobSpec& job, const model::BlockInstance& instance, std::int64_t micro_batch, int tensor_parallel,
             const Weights& weights, int copy = 0, std::int64_t positions = 0);
  TimedBlock(const TimedBlock&) = delete;
  TimedBlock& operator=(const TimedBlock&) = delete;

  // With the exchanges of a block that is cut over a group, where there is one.
  void forward(const comm::Group& group = {});
  void backward_input();
  void backward_weight();
  void passes(int times, const comm::Group& group = {});

 private:
  std::unique_ptr<nn::Block> block_;
  nn::Batch batch_;
  nn::Tensors inputs_;
  nn::Tensors output_grads_;  // none for a loss
  nn::Tensors outputs_;       // until the backward pass ends, as in training
  nn::Saved saved_;
  nn::Pass pass_;
};

}  // namespace tessera::train
