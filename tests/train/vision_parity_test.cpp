// Vision models against PyTorch's: the losses of five steps of momentum SGD from the same weights, and what the steps
// leave of parameters and running statistics.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <cstdio>

#include "base/folders.hpp"
#include "base/temporary_folder.hpp"
#include "checkpoint/hf_weights.hpp"
#include "train/vision_helper.hpp"

namespace tessera::train {
namespace {

// Runs tests/train/vision_reference.py, which leaves `images`, `labels`, `losses`, and `initial.NAME` and `final.NAME` of each tensor.
NamedTensors reference_of(const std::string& model) {
  const TemporaryFolder folder;
  const std::string command = text(kSourceFolder, "/.venv/bin/python ", kSourceFolder, "/tests/train/vision_reference.py ", model, " ",
                                   folder.path().string(), " 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  char buffer[256];
  while (pipe != nullptr && std::fgets(buffer, sizeof buffer, pipe) != nullptr) output += buffer;
  const int status = pipe == nullptr ? -1 : pclose(pipe);
  if (status != 0) throw Error(ErrorCode::internal, text("the reference failed with status ", status, ": ", output));
  const checkpoint::HfWeights weights(folder.path());
  NamedTensors out;
  for (const auto& [name, tensor] : weights.tensors()) {
    const bool whole_numbers = tensor.stored.type == checkpoint::ElementType::i64;
    at::Tensor& value = out[name] = at::empty(tensor.stored.shape, whole_numbers ? at::kLong : at::kFloat);
    std::copy(tensor.bytes.begin(), tensor.bytes.end(), static_cast<std::byte*>(value.data_ptr()));
  }
  return out;
}

NamedTensors with_prefix(const NamedTensors& all, const std::string& prefix) {
  NamedTensors out;
  for (const auto& [name, tensor] : all)
    if (name.starts_with(prefix)) out[name.substr(prefix.size())] = tensor;
  return out;
}

struct Case {
  const char* name;
  const char* section;
  bool narrow;
};

class VisionParity : public testing::TestWithParam<Case> {};

TEST_P(VisionParity, LossesParametersAndStatisticsAfterFiveSteps) {
  const auto& [name, section, narrow] = GetParam();
  const NamedTensors reference = reference_of(name);
  const at::Tensor& losses = reference.at("losses");
  const at::Tensor& labels = reference.at("labels");
  model::JobSpec job = vision_job(section, labels.size(0) / losses.size(0), 0.0003);
  if (narrow) job.model = narrowed(job.model);
  for (model::Repeat& repeat : job.model.repeats)
    if (repeat.block.dims.contains("dropout")) repeat.block.dims["dropout"] = 0;  // whose masks are ours
  const NamedTensors initial = with_prefix(reference, "initial.");
  const NamedTensors expected = with_prefix(reference, "final.");
  const Trained trained = train_on_images(job, plan_of(job, {}), reference.at("images"), labels, initial,
                                          at::get_num_threads());  // PyTorch has all of them, too
  for (std::int64_t step = 0; step < losses.size(0); ++step) {
    const double loss = losses[step].item<double>();
    EXPECT_NEAR(trained.losses.at(static_cast<std::size_t>(step)), loss, 1e-4 * loss) << "step " << step;
  }
  ASSERT_EQ(trained.tensors.size(), expected.size());
  for (const auto& [tensor, value] : expected) {
    const at::Tensor moved = value - initial.at(tensor);
    const double error = (trained.tensors.at(tensor) - value).norm().item<double>();
    EXPECT_LT(error, 1e-4 * value.norm().item<double>() + 2e-2 * moved.norm().item<double>() + 1e-6) << tensor;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, VisionParity,
                         testing::Values(Case{"resnet18", "{arch: resnet18, image: 64, classes: 10}", false},
                                         Case{"resnet50", "{arch: resnet50, image: 96, classes: 10}", false},
                                         Case{"vgg11", "{arch: vgg11, image: 64, classes: 10}", true},
                                         Case{"vgg16_bn", "{arch: vgg16, image: 64, classes: 10, norm: true}", true},
                                         Case{"vit", "{arch: vit, hidden: 64, layers: 3, heads: 4, image: 32, patch: 8, classes: 10}",
                                              false}),
                         [](const testing::TestParamInfo<Case>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tessera::train
