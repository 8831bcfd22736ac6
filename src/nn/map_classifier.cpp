#include <ATen/TensorOperators.h>
#include <ATen/ops/_adaptive_avg_pool2d_backward.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/threshold_backward.h>
#include <torch/csrc/autograd/autograd.h>
#include <utility>

#include "nn/autograd.hpp"
#include "nn/classifier.hpp"
#include "nn/dropout.hpp"
#include "nn/kernels/bias.hpp"
#include "nn/kernels/dropout.hpp"
#include "nn/linear.hpp"
#include "nn/parameter_row.hpp"
#include "nn/row_dropout.hpp"

namespace tessera::nn {
namespace {

constexpr std::int64_t kVggSide = 7;

bool of_vgg(const model::BlockSpec& spec) { return spec.kind == "mlp"; }

// A linear map whose outputs or inputs tensor parallelism divides, or that stands whole on each rank.
struct CutMap {
  enum class Cut { outputs, inputs, none } cut;
  StackedLinear map{};
  std::span<const Parameter> bias{};

  void bind(ParameterRow& parameters) {
    map.bind(parameters.take(1));
    bias = parameters.take(1);
  }
  at::Tensor forward(at::Tensor x, const Pass& pass) const {
    const auto product = [&](const at::Tensor& in, at::Tensor& out) { map.forward(in, out); };
    at::Tensor y;
    if (cut == Cut::inputs) {
      y = own_sum_of(std::move(x), map.out_width(), pass, product);
    } else {
      y = at::empty({x.size(0), map.out_width()}, x.options());
      product(x, y);
    }
    kernels::add_bias(y, bias.front().value);
    return y;
  }
  void backward_weight(const at::Tensor& grad, const at::Tensor& x) const {
    map.backward_weight(grad, x);
    kernels::bias_backward(grad, bias.front().grad);
  }
};

// What is kept of a micro-batch: what each map reads, and behind these the gradient of the logits; from the input half of the backward pass
// on those of all maps' outputs.
class MapClassifier final : public Block {
 public:
  MapClassifier(const model::BlockSpec& spec, const BlockPlacement& placement)
      : side_(spec.inputs.front().shape.back()), pooled_side_(of_vgg(spec) ? kVggSide : 1), dropped_(dropped_share(spec)) {
    if (of_vgg(spec)) {
      maps_ = {{CutMap::Cut::outputs}, {CutMap::Cut::inputs}};
      first_column_ = placement.tensor_rank * model::shard_extent(spec.dim("width1"), placement.tensor_size);
    }
    maps_.push_back({CutMap::Cut::none});
  }

  void bind(std::vector<Parameter> parameters) override {
    parameters_ = std::move(parameters);
    ParameterRow rest(parameters_);
    for (CutMap& map : maps_) map.bind(rest);
    ensure(rest.empty(), "a classifier has parameters that its dimensions do not ask for");
  }
  const std::vector<Parameter>& parameters() const override { return parameters_; }

  Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) override {
    at::Tensor x = at::adaptive_avg_pool2d(inputs.front(), {pooled_side_, pooled_side_}).flatten(1).contiguous();
    saved.tensors.clear();
    for (std::size_t i = 0; i < maps_.size(); ++i) {
      if (pass.training) saved.tensors.push_back(x);
      x = maps_[i].forward(std::move(x), pass);
      if (i + 1 == maps_.size()) break;
      x.relu_();
      if (drops(pass)) kernels::dropout_rows(x, dropped_, places_of(i, x, pass), x);
    }
    if (!pass.training) return classification_loss(x, pass);
    const WithAutograd autograd(true);
    const at::Tensor logits = x.detach().requires_grad_(true);
    Tensors loss = classification_loss(logits, pass);
    saved.tensors.push_back(torch::autograd::grad({loss.at(0)}, {logits}, {at::full_like(loss.at(0), pass.loss_scale)}).front());
    return {loss.at(0).detach(), loss.at(1)};
  }

  Tensors backward_input(const Tensors&, Saved& saved, const Pass& pass) override {
    Tensors& kept = saved.tensors;
    ensure(kept.size() == maps_.size() + 1, "backward_input without a training forward");
    Tensors grads = {std::move(kept.back())};  // of the maps' outputs, the last one's first
    kept.pop_back();
    for (std::size_t i = maps_.size(); i-- > 0;) {
      at::Tensor grad = at::empty_like(kept[i]);
      maps_[i].map.backward_input(grads.back(), grad);
      if (i > 0) {
        // What ReLU took and what was dropped are zeros in what the map read.
        grad = at::threshold_backward(grad, kept[i], 0);
        if (drops(pass)) grad.mul_(1 / (1 - dropped_));
      }
      grads.push_back(std::move(grad));
    }
    const at::Tensor pooled = grads.back().view({grads.back().size(0), -1, pooled_side_, pooled_side_});
    grads.pop_back();
    kept.insert(kept.end(), grads.rbegin(), grads.rend());
    // Each rank has what comes from its columns. Before the sum over them, the maps are at their smallest.
    const at::Tensor like = at::empty({pooled.size(0), pooled.size(1), side_, side_}, pooled.options());
    at::Tensor input_grad = at::_adaptive_avg_pool2d_backward(pooled, like);
    all_reduce(input_grad, pass);
    return {input_grad};
  }

  void backward_weight(Saved& saved, const Pass&) override {
    const Tensors kept = std::exchange(saved.tensors, {});
    ensure(kept.size() == 2 * maps_.size(), "backward_weight without backward_input");
    for (std::size_t i = 0; i < maps_.size(); ++i) maps_[i].backward_weight(kept[maps_.size() + i], kept[i]);
  }

 private:
  bool drops(const Pass& pass) const { return pass.drops && dropped_ > 0; }

  // Of the rows behind a map: the first one's are of this rank's columns.
  std::vector<kernels::RowPlace> places_of(std::size_t map, const at::Tensor& rows, const Pass& pass) const {
    std::vector<kernels::RowPlace> places;
    for (const std::uint64_t seed : sample_seeds(rows.size(0), static_cast<int>(map), pass))
      places.push_back({seed, maps_[map].cut == CutMap::Cut::outputs ? first_column_ : 0});
    return places;
  }

  std::vector<CutMap> maps_;
  std::int64_t side_;              // of the input's maps
  std::int64_t pooled_side_;       // of what they are averaged to
  std::int64_t first_column_ = 0;  // of this rank's part of the first map's outputs
  double dropped_;
  std::vector<Parameter> parameters_;
};

}  // namespace

std::unique_ptr<Block> make_map_classifier(const model::BlockSpec& spec, const BlockPlacement& placement) {
  return std::make_unique<MapClassifier>(spec, placement);
}

}  // namespace tessera::nn
