#include "nn/t5.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>
#include <cmath>
#include <limits>
#include <span>

#include "nn/dropout.hpp"
#include "nn/kernels/norm.hpp"
#include "nn/parameter_row.hpp"
#include "nn/row_dropout.hpp"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// By the kernel, which keeps a number for each row beside its input.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight, double epsilon) {
    const at::Tensor rows = x.contiguous().view({-1, x.size(-1)});
    at::Tensor out = at::empty_like(rows), statistics = at::empty({rows.size(0)}, rows.options().dtype(at::kFloat));
    kernels::rms_norm(rows, weight, epsilon, out, statistics);
    context->save_for_backward({x, weight, statistics});
    return out.view(x.sizes());
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor rows = saved[0].contiguous().view({-1, saved[0].size(-1)});
    at::Tensor grad = at::empty_like(rows), weight_grad = at::empty(saved[1].sizes(), rows.options().dtype(at::kFloat));
    kernels::rms_norm_backward(grads[0].contiguous().view(rows.sizes()), rows, saved[1], saved[2], {}, grad, weight_grad);
    return {grad.view(saved[0].sizes()), weight_grad, {}};
  }
};

// Of `distances` [any], key minus query, by the float32 arithmetic of the models that there are.
at::Tensor buckets_of(const at::Tensor& distances, std::int64_t buckets, std::int64_t max_distance, bool causal) {
  if (!causal) buckets /= 2;
  const at::Tensor far = causal ? (-distances).clamp_min(0) : distances.abs();
  const std::int64_t exact = buckets / 2;
  const double widening = std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
  const at::Tensor wide =
      exact +
      (at::log(far.to(at::kFloat) / exact) / widening * static_cast<double>(buckets - exact)).to(at::kLong).clamp_max(buckets - 1 - exact);
  const at::Tensor own = at::where(far < exact, far, wide);
  return causal ? own : own + (distances > 0).to(at::kLong) * buckets;
}

struct Form {
  std::int64_t heads;
  double dropped;
};

// Of the maps of queries, keys, values and the output.
at::Tensor attention(const at::Tensor& x, const at::Tensor& read, std::span<const at::Tensor> maps, const at::Tensor& bias,
                     const Form& form, Site site, const Pass& pass) {
  const auto mapped = [&](const at::Tensor& values, std::size_t map) {
    return at::linear(values, maps[map]).unflatten(2, {form.heads, -1}).transpose(1, 2);
  };
  const auto scores = [&] {
    const at::Tensor products = at::matmul(mapped(x, 0), mapped(read, 1).transpose(2, 3));
    return bias.defined() ? products + bias.to(products.scalar_type()) : products;
  };
  const at::Tensor shares = dropout(at::softmax(scores(), -1), form.dropped, site, pass);
  return at::linear(at::matmul(shares, mapped(read, 2)).transpose(1, 2).flatten(2), maps[3]);
}

}  // namespace

at::Tensor relative_bias(const at::Tensor& table, std::int64_t seq, std::int64_t max_distance, bool causal) {
  const at::Tensor distances = at::arange(1 - seq, seq, table.options().dtype(at::kLong));
  const std::int64_t buckets = table.size(0);
  // A product, whose gradient has one order on every device.
  const at::Tensor chosen = at::one_hot(buckets_of(distances, buckets, max_distance, causal), buckets).to(at::kFloat);
  at::Tensor values = at::matmul(table.to(at::kFloat).t(), chosen.t());
  if (causal) values = values.masked_fill(distances > 0, -std::numeric_limits<float>::infinity());
  // The last query's window over the distances begins at the first one.
  return values.unfold(1, seq, 1).flip(1);
}

Tensors t5_layer(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const Form form{block.dim("heads"), dropped_share(block)};
  std::span<const at::Tensor> rest = parameters;
  const auto take = [&](std::size_t count) {
    const auto taken = rest.first(count);
    rest = rest.subspan(count);
    return taken;
  };
  const auto norm = [&](const at::Tensor& x) { return RmsNorm::apply(x, take(1).front(), block.real("norm_eps")); };
  constexpr std::size_t kMaps = 4;

  at::Tensor x = inputs.front();
  auto maps = take(kMaps);
  const at::Tensor bias = relative_bias(take(1).front(), x.size(1), block.dim("max_distance"), has(block, "causal"));
  at::Tensor normed = norm(x);
  x = x + dropout(attention(normed, normed, maps, bias, form, kScores, pass), form.dropped, kAttended, pass);
  if (inputs.size() > 1) {
    maps = take(kMaps);
    x = x + dropout(attention(norm(x), inputs[1], maps, {}, form, kCrossScores, pass), form.dropped, kCrossAttended, pass);
  }
  const bool gated = has(block, "gated");
  maps = take(gated ? 3 : 2);
  normed = norm(x);
  const at::Tensor first = at::linear(normed, maps[0]);
  const at::Tensor wide = gated ? at::gelu(first, "tanh") * at::linear(normed, maps[1]) : at::relu(first);
  const at::Tensor added = at::linear(dropout(wide, form.dropped, kActivated, pass), maps.back());
  return {x + dropout(added, form.dropped, kFeedForward, pass)};
}

Tensors final_norm(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass) {
  const at::Tensor normed = RmsNorm::apply(inputs.front(), parameters.front(), block.real("norm_eps"));
  return {dropout(normed, dropped_share(block), kEmbedded, pass)};
}

}  // namespace tessera::nn
