#include "checkpoint/torchvision.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <fstream>

#include "base/config.hpp"
#include "base/error.hpp"
#include "checkpoint/checkpoint_helper.hpp"
#include "checkpoint/state_dict.hpp"
#include "nn/narrowed.hpp"

namespace tessera::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

model::ModelSpec small(const std::string& section) {
  return nn::test::narrowed(model::read_model(ConfigNode::parse(section, "test.yaml")));
}
model::ModelSpec resnet(int classes = 10) { return small(text("{arch: resnet18, image: 32, classes: ", classes, "}")); }

// Whole numbers that f16 and bf16 hold, others for each tensor.
Tensors weights_of(const model::ModelSpec& model) {
  Tensors out;
  std::int64_t first = 0;
  for (const auto& block : model.blocks())
    for (const auto& parameter : block.spec->parameters) {
      out[block.parameter_name(parameter)] = at::arange(first, first + parameter.count(), at::kFloat).remainder(127).view(parameter.shape);
      ++first;
    }
  return out;
}

// Python that has the same tensors in `weights`, with counters behind the running statistics.
std::string in_python(const Tensors& tensors, const model::ModelSpec& model) {
  std::string code = "import torch, collections\nweights, first = collections.OrderedDict(), 0\n";
  for (const auto& block : model.blocks())
    for (const auto& parameter : block.spec->parameters) {
      const std::string name = block.parameter_name(parameter);
      std::string shape;
      for (const std::int64_t extent : tensors.at(name).sizes()) shape += text(extent, ", ");
      code += text("weights['", name, "'] = (torch.arange(", parameter.count(), ") + first).remainder(127).float().view(", shape,
                   "); first += 1\n");
      if (name.ends_with(".running_var"))
        code += text("weights['", name.substr(0, name.size() - 11), "num_batches_tracked'] = torch.tensor(5)\n");
    }
  return code + "weights._metadata = collections.OrderedDict({'': {'version': 1}})\n";
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

class Torchvision : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_python()) GTEST_SKIP() << "no .venv with PyTorch";
  }
  std::filesystem::path file(const std::string& name) const { return folder_.path() / name; }
  std::string quoted(const std::string& name) const { return text("'", file(name).string(), "'"); }
  std::filesystem::path checkpoints() const { return folder_.path() / "checkpoints"; }

  TemporaryFolder folder_;
};

TEST_F(Torchvision, StateDictsInEveryFormOfPyTorchsAreTheSameWeights) {
  const model::ModelSpec model = resnet();
  const Tensors expected = weights_of(model);
  python(in_python(expected, model) + text(R"(
import argparse
from safetensors.torch import save_file
torch.save(weights, )",
                                           quoted("zip.pth"), R"()
torch.save(weights, )",
                                           quoted("old.pth"), R"(, _use_new_zipfile_serialization=False)
torch.save(weights, )",
                                           quoted("protocol4.pth"), R"(, pickle_protocol=4)
torch.save({name: torch.nn.Parameter(value) if value.is_floating_point() else value for name, value in weights.items()}, )",
                                           quoted("parameters.pth"), R"()
torch.save({name: value.to(memory_format=torch.channels_last) if value.dim() == 4 else value for name, value in weights.items()}, )",
                                           quoted("channels_last.pth"), R"()
torch.save({name: value.half() if value.is_floating_point() else value for name, value in weights.items()}, )",
                                           quoted("half.pth"), R"()
torch.save({name: value.bfloat16() if value.is_floating_point() else value for name, value in weights.items()}, )",
                                           quoted("bfloat16.pth"), R"()
torch.save({'epoch': 3, 'model': weights, 'optimizer': {'state': {0: torch.ones(3)}}, 'args': argparse.Namespace(lr=0.5)}, )",
                                           quoted("with_model.pth"), R"()
torch.save({'state_dict': {'module.' + name: value for name, value in weights.items()}, 'best': torch.tensor(7.5)}, )",
                                           quoted("parallel.pth.tar"), R"()
flat = torch.cat([torch.ones(3)] + [value.flatten().float() for value in weights.values()])
views, place = {}, 3
for name, value in weights.items():
  views[name] = flat[place:place + value.numel()].view(value.shape)
  place += value.numel()
torch.save(views, )",
                                           quoted("one_storage.pth"), R"()
save_file(dict(weights), )",
                                           quoted("weights.safetensors"), ")\n"));
  for (const char* name : {"zip.pth", "old.pth", "protocol4.pth", "parameters.pth", "channels_last.pth", "half.pth", "bfloat16.pth",
                           "with_model.pth", "parallel.pth.tar", "one_storage.pth", "weights.safetensors"}) {
    SCOPED_TRACE(name);
    EXPECT_THAT(import_state_dict(file(name), model, 1, checkpoints()), IsEmpty());
    const Reader reader(step_folder(checkpoints(), 0));
    EXPECT_EQ(difference(reader, expected), "");
    EXPECT_EQ(reader.state().model_fingerprint, model.fingerprint());
  }
}

TEST_F(Torchvision, AHeadForOtherClassesOrNoneBeginsWithInitialWeights) {
  const model::ModelSpec model = resnet(7);
  const model::ModelSpec theirs = resnet();
  python(in_python(weights_of(theirs), theirs) + text("torch.save(weights, ", quoted("ten.pth"),
                                                      ")\ndel weights['fc.weight'], weights['fc.bias']\ntorch.save(weights, ",
                                                      quoted("none.pth"), ")\n"));
  std::vector<at::Tensor> heads;
  for (const auto& [name, seed] : {std::pair("ten.pth", 1), {"none.pth", 1}, {"none.pth", 2}}) {
    EXPECT_THAT(import_state_dict(file(name), model, static_cast<std::uint64_t>(seed), checkpoints()), ElementsAre("fc.weight", "fc.bias"));
    const Reader reader(step_folder(checkpoints(), 0));
    EXPECT_TRUE(at::equal(reader.read("conv1.weight"), weights_of(theirs).at("conv1.weight")));
    heads.push_back(reader.read("fc.weight"));
  }
  EXPECT_EQ(heads[0].sizes(), at::IntArrayRef({7, 32}));
  EXPECT_TRUE(at::equal(heads[0], heads[1]));
  EXPECT_FALSE(at::equal(heads[0], heads[2]));
}

TEST_F(Torchvision, OtherModelsAreRefusedByATensorsName) {
  const model::ModelSpec model = resnet();
  std::string script;
  const auto add = [&](const std::string& name, const model::ModelSpec& theirs, const std::string& change = "") {
    script += in_python(weights_of(theirs), theirs) + change + text("\ntorch.save(weights, ", quoted(name), ")\n");
  };
  add("deeper.pth", small("{arch: resnet34, image: 32, classes: 10}"));
  add("bottleneck.pth", small("{arch: resnet50, image: 32, classes: 10}"));
  add("grey.pth", small("{arch: resnet18, image: 32, channels: 1, classes: 10}"));
  add("no_mean.pth", model, "del weights['bn1.running_mean']");
  add("whole.pth", model, "weights['conv1.weight'] = weights['conv1.weight'].int()");
  python(script);
  const auto refusal = [&](const std::string& name) { return error_of([&] { import_state_dict(file(name), model, 1, checkpoints()); }); };
  EXPECT_THAT(refusal("deeper.pth"), HasSubstr("which the model has not"));
  EXPECT_THAT(refusal("bottleneck.pth"), testing::AllOf(HasSubstr("tensor 'layer1.0.conv1.weight' has the shape"), HasSubstr("resnet18")));
  EXPECT_THAT(refusal("grey.pth"),
              testing::AllOf(HasSubstr("tensor 'conv1.weight' has the shape [4, 1, 7, 7]"), HasSubstr("[4, 3, 7, 7]")));
  EXPECT_THAT(refusal("no_mean.pth"), HasSubstr("tensor 'bn1.running_mean' is missing"));
  EXPECT_THAT(refusal("whole.pth"), HasSubstr("IntStorage"));
  EXPECT_FALSE(std::filesystem::exists(checkpoints() / "step-000000"));
}

TEST_F(Torchvision, DamagedAndHostileFilesAreRefusedAndNothingOfThemIsRun) {
  const model::ModelSpec model = resnet();
  python(in_python(weights_of(model), model) + text(R"(
import os, tarfile
torch.save(weights, )",
                                                    quoted("zip.pth"), R"()
torch.save(weights, )",
                                                    quoted("old.pth"), R"(, _use_new_zipfile_serialization=False)
class Runs:
  def __reduce__(self): return (os.system, ('touch )",
                                                    file("ran").string(), R"(',))
torch.save({'state_dict': Runs()}, )",
                                                    quoted("runs.pth"), R"()
torch.save([1, 2], )",
                                                    quoted("list.pth"), R"()
tarfile.open()",
                                                    quoted("tar.pth"), R"(, 'w').close()
with tarfile.open()",
                                                    quoted("tar.pth"), R"(, 'w') as archive: archive.add()", quoted("list.pth"), R"()
whole = open()",
                                                    quoted("zip.pth"), R"(, 'rb').read()
open()",
                                                    quoted("short.pth"), R"(, 'wb').write(whole[:len(whole) // 2])
whole = open()",
                                                    quoted("old.pth"), R"(, 'rb').read()
for count in (3, 20, 200, len(whole) // 2, len(whole) - 1): open(f')",
                                                    folder_.path().string(), R"(/old-{count}.pth', 'wb').write(whole[:count])
)"));
  std::ofstream(file("text.pth")) << "conv1.weight = 1";
  EXPECT_THAT(error_of([&] { read_state_dict(file("tar.pth")); }), HasSubstr("torch.save(torch.load(FILE), NEW)"));
  EXPECT_THAT(error_of([&] { read_state_dict(file("none.pth")); }), HasSubstr("none.pth"));
  int damaged = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    const std::string name = entry.path().filename();
    if (name == "zip.pth" || name == "old.pth" || name == "tar.pth" || entry.is_directory()) continue;
    EXPECT_THAT(error_of([&] { read_state_dict(entry.path()); }), HasSubstr(name)) << name;
    ++damaged;
  }
  EXPECT_EQ(damaged, 9);
  EXPECT_FALSE(std::filesystem::exists(file("ran")));
}

TEST_F(Torchvision, AnExportHasATorchvisionModelsTensorsAndComesBack) {
  for (const char* section : {"{arch: resnet50, image: 32, classes: 10}", "{arch: vgg11, image: 32, classes: 10, norm: true}"}) {
    const model::ModelSpec model = small(section);
    const Tensors weights = weights_of(model);
    State state;
    state.step = 20;
    state.model_fingerprint = model.fingerprint();
    Random random(1);
    Tensors saved = weights;
    for (const auto& [name, tensor] : weights) saved[name + ".momentum"] = tensor;
    save(real_file_system(), checkpoints(), 20, cut(saved, {2, 1, true}, random), state);
    export_torchvision(step_folder(checkpoints(), 20), model, file("out.safetensors"));
    // Once more over an earlier export.
    export_torchvision(step_folder(checkpoints(), 20), model, file("out.safetensors"));
    EXPECT_EQ(python(in_python(weights, model) + text(R"(
from safetensors.torch import load_file
found = load_file()",
                                                      quoted("out.safetensors"), R"()
assert found.keys() == weights.keys(), found.keys() ^ weights.keys()
for name, value in weights.items():
  expected = torch.tensor(20) if name.endswith('num_batches_tracked') else value
  assert found[name].dtype == expected.dtype and torch.equal(found[name], expected), name
print('same')
)")),
              "same\n");
    EXPECT_THAT(import_state_dict(file("out.safetensors"), model, 1, folder_.path() / "again"), IsEmpty());
    EXPECT_EQ(difference(Reader(step_folder(folder_.path() / "again", 0)), weights), "");
    std::filesystem::remove_all(checkpoints());
  }
  const model::ModelSpec vit = model::read_model(ConfigNode::parse("{arch: vit, hidden: 64, layers: 1, heads: 4, image: 32}", "test.yaml"));
  EXPECT_THAT(error_of([&] { export_torchvision(step_folder(checkpoints(), 20), vit, file("vit.safetensors")); }),
              HasSubstr("a ResNet or a VGG"));
}

TEST_F(Torchvision, AFileOfOthersIsNotOverwritten) {
  const model::ModelSpec model = resnet();
  State state;
  state.model_fingerprint = model.fingerprint();
  Random random(1);
  save(real_file_system(), checkpoints(), 0, cut(weights_of(model), {1, 1, false}, random), state);
  std::ofstream(file("mine.safetensors")) << "something else";
  EXPECT_THAT(error_of([&] { export_torchvision(step_folder(checkpoints(), 0), model, file("mine.safetensors")); }),
              HasSubstr("will not be overwritten"));
}

}  // namespace
}  // namespace tessera::checkpoint
