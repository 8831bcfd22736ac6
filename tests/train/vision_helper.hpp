// Training on images that a test makes, by a rank's program and its store.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "nn/narrowed.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {

// model: the text of a model section. Momentum SGD, without weight decay and clipping.
model::JobSpec vision_job(const std::string& model, std::int64_t global_batch, double lr);
using nn::test::narrowed;

using NamedTensors = std::map<std::string, at::Tensor>;

// What a training run has seen and left.
struct Trained {
  std::vector<double> losses;
  NamedTensors tensors;  // parameters and buffers after the last step
};

// `images` [steps * global batch, ...] and `labels` [steps * global batch]: of each step as many as the batch has. Begins with `initial`
// where there is any, and otherwise with the initial values of the job's seed. `threads`: of each rank.
Trained train_on_images(const model::JobSpec& job, const plan::Plan& plan, const at::Tensor& images, const at::Tensor& labels,
                        const NamedTensors& initial = {}, int threads = 1);

}  // namespace tessera::train
