// Blocks of vision models with parameters of their own.
#pragma once

#include <string>

#include "nn/block.hpp"

namespace tessera::nn::test {

// model: the text of a model section, "{arch: resnet18, image: 32, classes: 10}". VGG is narrowed.
model::ModelSpec vision_model(const std::string& section);
// Random images and labels.
Batch random_images(const model::ModelSpec& model, std::int64_t samples);

// All blocks, with initial values, on one rank.
class VisionModel {
 public:
  explicit VisionModel(model::ModelSpec spec);
  VisionModel(const VisionModel&) = delete;
  VisionModel& operator=(const VisionModel&) = delete;

  const std::vector<model::BlockInstance>& instances() const { return instances_; }
  Block& block(std::size_t index) { return *blocks_.at(index); }
  // What the last block returns.
  Tensors forward(const Pass& pass, std::vector<Saved>& saved);
  // Forward and backward, where `recompute` with all blocks but the first and the last computed again.
  Tensors step(const Pass& pass, bool recompute = false);
  // By the parameter's name.
  const Parameter& parameter(const std::string& name) const;

 private:
  const model::ModelSpec spec_;
  const std::vector<model::BlockInstance> instances_;
  std::vector<std::unique_ptr<Block>> blocks_;
};

}  // namespace tessera::nn::test
