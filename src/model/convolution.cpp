// ResNet (He et al. 2016; the stride stands in the 3x3 convolution, as torchvision and Goyal et al. 2017 have it) and VGG
// (Simonyan and Zisserman 2015). Parameters are named as torchvision names them.
#include <array>
#include <cmath>
#include <span>

#include "model/families.hpp"
#include "model/vision_cost.hpp"

namespace tessera::model {
namespace {

using Parameters = std::vector<ParameterSpec>;

void add_convolution(Parameters& parameters, const std::string& name, std::int64_t out, std::int64_t in, std::int64_t kernel, bool biased) {
  // He et al. 2015, of what leaves the map.
  const double deviation = std::sqrt(2.0 / static_cast<double>(out * kernel * kernel));
  parameters.push_back({name + ".weight", {out, in, kernel, kernel}, -1, normal(deviation), true, {}});
  if (biased) parameters.push_back(bias(name + ".bias", out));
}

// With the running statistics, which are buffers.
void add_batch_norm(Parameters& parameters, const std::string& name, std::int64_t extent) {
  constexpr double kMomentum = 0.1;
  add_layer_norm(parameters, name, extent);
  for (const auto& [statistic, init] : {std::pair("mean", "zeros"), {"var", "ones"}}) {
    ParameterSpec buffer{name + ".running_" + statistic, {extent}, -1, {init, 0}, false, {}};
    buffer.buffer_momentum = kMomentum;
    parameters.push_back(std::move(buffer));
  }
}

TensorSpec map_of(std::int64_t channels, std::int64_t side) { return {"map", {channels, side, side}}; }

// What a picture model is told, and the dimensions that all models have.
ModelSpec picture_model(const Settings& settings, const std::string& arch) {
  ModelSpec model;
  model.arch = arch;
  model.dims["image"] = static_cast<double>(settings.count("image", 224));
  model.dims["channels"] = static_cast<double>(settings.count("channels", 3));
  model.dims["classes"] = static_cast<double>(settings.count("classes", 1000));
  fill_dims(model.dims);
  return model;
}

// Over whose samples batch norm takes mean and variance.
constexpr const char* kSynchronized = "synchronized";

bool synchronizes(const Settings& settings, bool has_norm) {
  const bool said = settings.choice("batch_norm", {"device", kSynchronized}, "device") == kSynchronized;
  if (said && !has_norm) throw settings.at("batch_norm").error("the model has no batch norm", "norm: true beside it");
  return said;
}

void synchronize(ModelSpec& model) {
  for (Repeat& repeat : model.repeats)
    if (is_residual(repeat.block) || repeat.block.kind == "conv_layer") repeat.block.dims[kSynchronized] = 1;
}

std::map<std::string, double> layer_dims(std::initializer_list<std::pair<const char*, std::int64_t>> values) {
  std::map<std::string, double> dims;
  for (const auto& [key, value] : values) dims[key] = static_cast<double>(value);
  return dims;
}

struct ResNet {
  int depth;
  std::array<int, 4> blocks;
  bool bottleneck;
};
constexpr ResNet kResNets[] = {
    {18, {2, 2, 2, 2}, false}, {34, {3, 4, 6, 3}, false}, {50, {3, 4, 6, 3}, true}, {101, {3, 4, 23, 3}, true}, {152, {3, 8, 36, 3}, true}};

struct Vgg {
  int depth;
  std::array<int, 5> layers;
};
constexpr Vgg kVggs[] = {{11, {1, 1, 2, 2, 2}}, {13, {2, 2, 2, 2, 2}}, {16, {2, 2, 3, 3, 3}}, {19, {2, 2, 4, 4, 4}}};

// The digits after the family's name, or `depth`.
template <typename Known>
const Known& by_depth(const Settings& settings, const std::string& arch, const std::string& family, std::span<const Known> all) {
  const std::int64_t depth = arch == family ? settings.count("depth") : std::stoll(arch.substr(family.size()));
  std::string depths;
  for (const Known& known : all) {
    if (known.depth == depth) return known;
    depths += (depths.empty() ? "" : ", ") + std::to_string(known.depth);
  }
  throw settings.at(arch == family ? "depth" : "arch").error(text("found ", depth), "one of: " + depths);
}

// A residual block, or where it is split one of its two parts: the branch but for its last convolution, and that convolution with the sum.
BlockSpec residual_block(const std::string& kind, const std::string& name, std::int64_t in, std::int64_t mid, std::int64_t out,
                         std::int64_t stride, std::int64_t size, bool bottleneck) {
  const bool opens = kind != kResidualSum, closes = kind != kResidualBranch;
  const bool shortcut = stride != 1 || in != out;
  const std::int64_t side = side_after(size, 3, stride, 1);
  BlockSpec block{kind, opens && closes ? name : text(name, opens ? ".branch" : ".sum"), {}, {}, {map_of(in, size)}, {map_of(out, side)}};
  const TensorSpec branch{"branch", map_of(mid, side).shape};
  if (!closes) block.outputs = {branch};
  if (!opens) block.inputs.push_back(branch);
  block.dims = layer_dims(
      {{"in", in}, {"mid", mid}, {"out", out}, {"stride", stride}, {"size", size}, {"bottleneck", bottleneck}, {"shortcut", shortcut}});
  const auto add = [&](const std::string& number, std::int64_t to, std::int64_t from, std::int64_t kernel) {
    add_convolution(block.parameters, name + ".conv" + number, to, from, kernel, false);
    add_batch_norm(block.parameters, name + ".bn" + number, to);
  };
  if (opens) add("1", mid, in, bottleneck ? 1 : 3);
  if (opens && bottleneck) add("2", mid, mid, 3);
  if (!closes) return block;
  add(bottleneck ? "3" : "2", out, mid, bottleneck ? 1 : 3);
  if (shortcut) {
    add_convolution(block.parameters, name + ".downsample.0", out, in, 1, false);
    add_batch_norm(block.parameters, name + ".downsample.1", out);
  }
  return block;
}

BlockSpec conv_layer(const std::string& name, std::int64_t in, std::int64_t out, std::int64_t size, bool norm, bool pool, bool data) {
  BlockSpec block{"conv_layer", name, {}, {}, {map_of(in, size)}, {map_of(out, pool ? side_after(size, 2, 2, 0) : size)}};
  block.dims = layer_dims({{"in", in},
                           {"out", out},
                           {"kernel", 3},
                           {"stride", 1},
                           {"padding", 1},
                           {"size", size},
                           {"norm", norm},
                           {"pool_kernel", pool ? 2 : 0},
                           {"pool_stride", 2},
                           {"pool_padding", 0},
                           {"data", data}});
  if (data) block.inputs.clear();
  return block;
}

BlockSpec stem(const ModelSpec& model, std::int64_t& side) {
  const std::int64_t image = model.dim("image");
  BlockSpec block{"conv_layer", "stem", {}, {}, {}, {}};
  block.dims = layer_dims({{"in", model.dim("channels")},
                           {"out", 64},
                           {"kernel", 7},
                           {"stride", 2},
                           {"padding", 3},
                           {"size", image},
                           {"norm", 1},
                           {"pool_kernel", 3},
                           {"pool_stride", 2},
                           {"pool_padding", 1},
                           {"data", 1}});
  add_convolution(block.parameters, "conv1", 64, model.dim("channels"), 7, false);
  add_batch_norm(block.parameters, "bn1", 64);
  side = side_after(side_after(image, 7, 2, 3), 3, 2, 1);
  block.outputs = {map_of(64, side)};
  return block;
}

}  // namespace

ModelSpec read_resnet(const Settings& settings, const std::string& arch) {
  std::vector<std::string> keys = {"image", "channels", "classes", "batch_norm", "split_layers"};
  if (arch == "resnet") keys.emplace_back("depth");
  settings.allow_only(keys);
  const ResNet& known = by_depth<ResNet>(settings, arch, "resnet", kResNets);
  const bool split = settings.flag("split_layers", false);
  ModelSpec model = picture_model(settings, text("resnet", known.depth));
  std::int64_t side = 0;
  model.repeats.push_back({stem(model, side), 1});
  std::int64_t in = 64;
  for (int stage = 0; stage < 4; ++stage) {
    const std::int64_t mid = 64LL << stage;
    const std::int64_t out = known.bottleneck ? 4 * mid : mid;
    const std::int64_t stride = stage == 0 ? 1 : 2;
    const std::string name = text("layer", stage + 1, ".{}");
    const int count = known.blocks[static_cast<std::size_t>(stage)];
    const auto push = [&](const std::string& kind, int first, int blocks) {
      model.repeats.push_back(
          {residual_block(kind, name, first == 0 ? in : out, mid, out, first == 0 ? stride : 1, side, known.bottleneck), blocks, first});
    };
    if (split) {
      for (int i = 0; i < count; ++i) {
        push(kResidualBranch, i, 1);
        push(kResidualSum, i, 1);
        if (i == 0) side = side_after(side, 3, stride, 1);
      }
    } else {
      push(kResidualBlock, 0, 1);
      side = side_after(side, 3, stride, 1);
      push(kResidualBlock, 1, count - 1);
    }
    in = out;
  }
  BlockSpec classifier{
      "classifier", "classifier",       layer_dims({{"hidden", in}, {"classes", model.dim("classes")}, {"pixels", side * side}}),
      {},           {map_of(in, side)}, {{"loss", {}}}};
  if (synchronizes(settings, true)) synchronize(model);
  add_linear(classifier.parameters, "fc", model.dim("classes"), in, -1, true, {"uniform", 1 / std::sqrt(static_cast<double>(in))});
  model.repeats.push_back({std::move(classifier), 1});
  return model;
}

ModelSpec read_vgg(const Settings& settings, const std::string& arch) {
  std::vector<std::string> keys = {"image", "channels", "classes", "norm", "batch_norm"};
  if (arch == "vgg") keys.emplace_back("depth");
  settings.allow_only(keys);
  const Vgg& known = by_depth<Vgg>(settings, arch, "vgg", kVggs);
  ModelSpec model = picture_model(settings, text("vgg", known.depth));
  const bool norm = settings.flag("norm", false);
  if (norm) model.dims["norm"] = 1;
  std::int64_t side = model.dim("image");
  if (side < 32) throw settings.at("image").error(text("nothing is left of a side of ", side, " that is halved five times"), "at least 32");
  std::int64_t in = model.dim("channels");
  int place = 0;  // in torchvision's list of layers
  for (int stage = 0; stage < 5; ++stage) {
    const std::int64_t out = std::min<std::int64_t>(512, 64LL << stage);
    const int layers = known.layers[static_cast<std::size_t>(stage)];
    for (int layer = 0; layer < layers; ++layer) {
      BlockSpec block = conv_layer(text("features.", place), in, out, side, norm, layer + 1 == layers, model.repeats.empty());
      add_convolution(block.parameters, text("features.", place), out, in, 3, true);
      if (norm) add_batch_norm(block.parameters, text("features.", place + 1), out);
      model.repeats.push_back({std::move(block), 1});
      place += norm ? 3 : 2;
      in = out;
    }
    side /= 2;
    ++place;
  }
  if (synchronizes(settings, norm)) synchronize(model);
  // The classifier sees 7 x 7 pixels, whatever the image's size.
  const std::array<std::int64_t, 4> widths = {in * 49, 4096, 4096, model.dim("classes")};
  BlockSpec classifier{
      "mlp", "classifier",       layer_dims({{"maps", 3}, {"last_relu", 0}, {"data", 0}, {"loss", 1}, {"pixels", side * side}}),
      {},    {map_of(in, side)}, {{"loss", {}}}};
  classifier.dims["dropout"] = 0.5;
  for (std::size_t i = 0; i < widths.size(); ++i) classifier.dims[text("width", i)] = static_cast<double>(widths[i]);
  // The first map's outputs and the second's inputs are divided, and the last map stands whole.
  for (std::size_t i = 0; i < 3; ++i)
    add_linear(classifier.parameters, text("classifier.", 3 * i), widths[i + 1], widths[i], i < 2 ? static_cast<int>(i) : -1, true,
               normal(0.01));
  model.repeats.push_back({std::move(classifier), 1});
  return model;
}

}  // namespace tessera::model
