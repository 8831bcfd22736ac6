#include "model/vision_cost.hpp"

#include <algorithm>

#include "model/forms.hpp"
#include "model/layer_cost.hpp"
#include "model/transformer_cost.hpp"
#include "model/work.hpp"

namespace tessera::model {
namespace {

// Convolutions one after another on square maps. Where libtorch convolves, it makes the gradient of a weight beside the one that it is
// added to, and turns both into the order of its maps and back; products over patches copy the patches.
class Maps {
 public:
  Maps(const BlockSpec& block, const BlockShard& shard)
      : block_(block), images_(shard.micro_batch_size), replicas_(shard.replicas), work_(shard), element_(work_.element()) {}

  std::int64_t dim(const char* key) const { return block_.dim(key); }
  Work& work() { return work_; }
  std::int64_t bytes(std::int64_t channels, std::int64_t side) const { return images_ * channels * side * side * element_; }

  // Keeps its input; leaves the side of its output.
  std::int64_t convolve(std::string_view name, std::int64_t in, std::int64_t out, std::int64_t side, std::int64_t kernel,
                        std::int64_t stride, std::int64_t padding, bool keep_input = true) {
    const std::int64_t after = side_after(side, kernel, stride, padding);
    if (keep_input) keep(bytes(in, side));
    const std::int64_t window = kernel * kernel * in, pixels = images_ * after * after;
    const auto weights = static_cast<std::int64_t>(kCopies * static_cast<double>(element_ * window * out));
    if (kernel > 1) copies_ = std::max(copies_, by_patches(pixels, out, Gradient::of_weight) ? kF32Bytes * pixels * window : weights);
    work_.convolution(name, images_, after * after, out, kernel * kernel * in, bytes(in, side));
    return after;
  }
  // Statistics, then scale: the input is read twice. Mean and variance are kept for the gradients and for the running ones. Replicas gather
  // how many values each has seen, with their means and variances, and sum what gradients need of all of them.
  void normalize(std::string_view name, std::int64_t channels, std::int64_t side) {
    keep(bytes(channels, side));
    work_.keep(4 * kF32Bytes * channels);
    if (replicas_ > 1) {
      work_.keep(kF32Bytes);
      work_.exchange_forward({Exchange::Axis::replica, "all_gather", Bytes(replicas_ * (2 * channels + 1) * kF32Bytes)});
      work_.exchange_backward({Exchange::Axis::replica, "all_reduce", Bytes(2 * channels * kF32Bytes)});
    }
    work_.pointwise(name, 3 * bytes(channels, side), 5 * bytes(channels, side));
  }
  void rectify(std::string_view name, std::int64_t channels, std::int64_t side) {
    work_.pointwise(name, 2 * bytes(channels, side), 3 * bytes(channels, side));
  }
  void keep(std::int64_t size) {
    largest_ = std::max(largest_, size);
    work_.keep(size);
  }

  BlockCost finish(std::int64_t input, std::int64_t output, Recompute recompute) && {
    const std::int64_t kept = work_.kept();
    BlockCost cost = std::move(work_).finish(input);
    cost.output = Bytes(output);
    const bool full = recompute == Recompute::full;
    cost.forward_workspace = Bytes(full ? 2 * largest_ : 0);
    cost.backward_workspace = Bytes((full ? kept - input + largest_ : 2 * largest_) + copies_);
    return cost;
  }

 private:
  static constexpr double kCopies = 3.7;  // of a weight; measured 3.3 in ResNet-50 and 4 in ResNet-18

  const BlockSpec& block_;
  std::int64_t images_;
  std::int64_t replicas_;
  Work work_;
  std::int64_t element_;
  std::int64_t largest_ = 0;
  std::int64_t copies_ = 0;  // of a convolution's weights, or patches
};

}  // namespace

std::int64_t side_after(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return (size + 2 * padding - kernel) / stride + 1;
}

bool by_patches(std::int64_t pixels, std::int64_t out, Gradient gradient) {
  return pixels <= (gradient == Gradient::of_weight ? out : out / 2);
}

BlockCost patch_embedding_cost(const BlockSpec& block, const BlockShard& shard) {
  Maps maps(block, shard);
  const std::int64_t image = maps.dim("image");
  const std::int64_t patch = maps.dim("patch");
  const std::int64_t output = shard.micro_batch_size * maps.dim("seq") * maps.dim("hidden") * maps.work().element();
  maps.work().inputs_are_data();
  maps.convolve("patches", maps.dim("channels"), maps.dim("hidden"), image, patch, patch, 0);
  maps.work().pointwise("positions", 3 * output, 2 * output);
  const std::int64_t passed = shard.sequence_parallel ? (output + shard.tensor_parallel - 1) / shard.tensor_parallel : output;
  return std::move(maps).finish(maps.bytes(maps.dim("channels"), image), passed, shard.recompute);
}

BlockCost encoder_layer_cost(const BlockSpec& block, const BlockShard& shard) {
  if (cut_by_nn(block) || is_of_t5(block)) return transformer_layer_cost(block, shard);
  BlockCost cost = layer_cost(block, shard);
  if (!computed_by_nn(block) || shard.tensor_parallel > 1) return cost;
  // Autograd frees what a gradient has read: the one of the activation takes the place of what was kept of it. Of the weights' gradients
  // about a third is there then, beside those that they are added to.
  const std::int64_t element = element_size(shard.precision).value;
  const std::int64_t activation = shard.micro_batch_size * block.dim("seq") * block.dim("ffn");
  cost.backward_workspace += Bytes(element * (block.parameter_count() / 3 - activation));
  return cost;
}

BlockCost classifier_cost(const BlockSpec& block, const BlockShard& shard) {
  const std::int64_t hidden = block.dim("hidden");
  const std::int64_t classes = block.dim("classes");
  const std::int64_t rows = shard.micro_batch_size;
  Work work(shard);
  const bool averaged = block.dims.contains("pixels");
  const bool pooled = block.dims.contains("post_norm");  // BERT's
  const std::int64_t input = rows * hidden * work.element() * block.dim(averaged ? "pixels" : "seq");
  if (pooled)
    work.linear("pooler", rows, hidden, hidden);
  else
    work.pointwise(averaged ? "average" : "norm", averaged ? input : 2 * input, averaged ? input : 3 * input);
  work.keep(input);  // of maps by the block before
  work.keep((pooled ? 2 : 1) * rows * hidden * work.operand());
  work.linear("classes", rows, classes, hidden);
  work.pointwise("cross_entropy", 3 * kF32Bytes * rows * classes, 2 * kF32Bytes * rows * classes);
  work.keep(kF32Bytes * rows * classes);
  // Autograd makes the parameters' gradients anew.
  const std::int64_t anew = averaged ? 0 : work.element() * block.parameter_count();
  BlockCost cost = std::move(work).finish(input);
  cost.output = Bytes(kF32Bytes);
  cost.backward_workspace = Bytes(input + anew);
  return cost;
}

BlockCost conv_layer_cost(const BlockSpec& block, const BlockShard& shard) {
  Maps maps(block, shard);
  const std::int64_t in = maps.dim("in");
  const std::int64_t out = maps.dim("out");
  const std::int64_t size = maps.dim("size");
  if (maps.dim("data") != 0) maps.work().inputs_are_data();
  std::int64_t side = maps.convolve("conv", in, out, size, maps.dim("kernel"), maps.dim("stride"), maps.dim("padding"));
  if (maps.dim("norm") != 0) maps.normalize("norm", out, side);
  maps.rectify("relu", out, side);
  if (const std::int64_t kernel = maps.dim("pool_kernel"); kernel > 0) {
    const std::int64_t pooled = side_after(side, kernel, maps.dim("pool_stride"), maps.dim("pool_padding"));
    constexpr std::int64_t kIndexBytes = 8;
    const std::int64_t indices = shard.micro_batch_size * out * pooled * pooled * kIndexBytes;
    maps.keep(maps.bytes(out, side));
    maps.keep(indices);
    maps.work().pointwise("maximum", maps.bytes(out, side) + maps.bytes(out, pooled) + indices,
                          maps.bytes(out, side) + maps.bytes(out, pooled) + indices);
    side = pooled;
  }
  const std::int64_t input = maps.bytes(in, size);
  const std::int64_t output = maps.bytes(out, side);
  return std::move(maps).finish(input, output, shard.recompute);
}

bool is_residual(const BlockSpec& block) {
  return block.kind == kResidualBlock || block.kind == kResidualBranch || block.kind == kResidualSum;
}

BlockCost residual_block_cost(const BlockSpec& block, const BlockShard& shard) {
  Maps maps(block, shard);
  const bool opens = block.kind != kResidualSum, closes = block.kind != kResidualBranch;
  const bool bottleneck = maps.dim("bottleneck") != 0;
  const std::int64_t in = maps.dim("in");
  const std::int64_t mid = maps.dim("mid");
  const std::int64_t out = maps.dim("out");
  const std::int64_t size = maps.dim("size");
  const std::int64_t stride = maps.dim("stride");
  const std::int64_t side = side_after(size, 3, stride, 1);
  const auto unit = [&](int number, std::int64_t from, std::int64_t to, std::int64_t extent, std::int64_t kernel, std::int64_t step,
                        bool rectified) {
    const std::int64_t after = maps.convolve(text("conv", number), from, to, extent, kernel, step, kernel / 2);
    maps.normalize(text("norm", number), to, after);
    if (rectified) maps.rectify(text("relu", number), to, after);
  };
  if (opens) unit(1, in, mid, size, bottleneck ? 1 : 3, bottleneck ? 1 : stride, true);
  if (opens && bottleneck) unit(2, mid, mid, size, 3, stride, true);
  const std::int64_t input = maps.bytes(in, size);
  if (!closes) return std::move(maps).finish(input, maps.bytes(mid, side), shard.recompute);
  unit(bottleneck ? 3 : 2, mid, out, side, bottleneck ? 1 : 3, 1, false);
  if (maps.dim("shortcut") != 0) {
    maps.convolve("shortcut", in, out, size, 1, stride, 0, false);
    maps.normalize("shortcut_norm", out, side);
  }
  const std::int64_t output = maps.bytes(out, side);
  maps.work().pointwise("sum", 3 * output, 3 * output);
  maps.rectify("relu", out, side);
  return std::move(maps).finish(input + (opens ? 0 : maps.bytes(mid, side)), output, shard.recompute);
}

}  // namespace tessera::model
