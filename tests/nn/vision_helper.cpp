#include "nn/vision_helper.hpp"

#include <ATen/ATen.h>

#include "nn/autograd.hpp"
#include "nn/narrowed.hpp"

namespace tessera::nn::test {

model::ModelSpec vision_model(const std::string& section) {
  model::ModelSpec model = model::read_model(ConfigNode::parse(section, "model.yaml"));
  return model.arch.starts_with("vgg") ? narrowed(std::move(model)) : model;
}

Batch random_images(const model::ModelSpec& model, std::int64_t samples) {
  at::manual_seed(5);
  const std::int64_t side = model.dim("image");
  Batch batch;
  batch.tensors["images"] = at::randn({samples, model.dim("channels"), side, side});
  batch.tensors["labels"] = at::randint(model.dim("classes"), {samples}, at::kLong);
  return batch;
}

VisionModel::VisionModel(model::ModelSpec spec) : spec_(std::move(spec)), instances_(spec_.blocks()) {
  for (const model::BlockInstance& instance : instances_) {
    std::vector<Parameter> parameters;
    for (const model::ParameterSpec& parameter : instance.spec->parameters) {
      const std::string name = instance.parameter_name(parameter);
      at::Tensor value = at::zeros(parameter.shape);
      initialize(parameter, name, 1, {}, value);
      parameters.push_back({&parameter, name, value, at::zeros(parameter.shape)});
    }
    blocks_.push_back(make_block(*instance.spec, {}));
    blocks_.back()->bind(std::move(parameters));
  }
}

Tensors VisionModel::forward(const Pass& pass, std::vector<Saved>& saved) {
  saved.resize(blocks_.size());
  Tensors tensors;
  for (std::size_t b = 0; b < blocks_.size(); ++b) tensors = blocks_[b]->forward(tensors, saved[b], pass);
  return tensors;
}

Tensors VisionModel::step(const Pass& pass, bool recompute) {
  const WithoutAutograd plain;
  Pass unsaved = pass;
  unsaved.training = false;
  const auto repeats = [&](std::size_t block) { return recompute && block > 0 && block + 1 < blocks_.size(); };
  std::vector<Saved> saved(blocks_.size());
  std::vector<Tensors> inputs(blocks_.size());
  Tensors tensors;
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    if (repeats(b)) inputs[b] = tensors;
    tensors = blocks_[b]->forward(tensors, saved[b], repeats(b) ? unsaved : pass);
  }
  const Tensors loss = std::move(tensors);
  Tensors grads;
  for (std::size_t b = blocks_.size(); b-- > 0;) {
    if (repeats(b)) blocks_[b]->forward(inputs[b], saved[b], pass);
    inputs[b].clear();
    grads = blocks_[b]->backward_input(grads, saved[b], pass);
    blocks_[b]->backward_weight(saved[b], pass);
  }
  return loss;
}

const Parameter& VisionModel::parameter(const std::string& name) const {
  for (const auto& block : blocks_)
    for (const Parameter& parameter : block->parameters())
      if (parameter.name == name) return parameter;
  throw Error(ErrorCode::not_found, "no parameter " + name);
}

}  // namespace tessera::nn::test
