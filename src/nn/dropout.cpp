#include "nn/dropout.hpp"

#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/hash.hpp"
#include "nn/kernels/dropout.hpp"

namespace tessera::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor dropped(const at::Tensor& x, double probability, const std::vector<std::uint64_t>& seeds) {
  const at::Tensor whole = x.contiguous();
  at::Tensor out = at::empty_like(whole);
  kernels::dropout(whole, probability, seeds, out);
  return out;
}

// Keeps the seeds alone.
struct Dropout : torch::autograd::Function<Dropout> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, double probability, const std::vector<std::int64_t>& seeds) {
    context->saved_data["probability"] = probability;
    context->saved_data["seeds"] = seeds;
    return dropped(x, probability, {seeds.begin(), seeds.end()});
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const std::vector<std::int64_t> seeds = context->saved_data["seeds"].toIntVector();
    return {dropped(grads[0], context->saved_data["probability"].toDouble(), {seeds.begin(), seeds.end()}), {}, {}};
  }
};

}  // namespace

std::vector<std::uint64_t> sample_seeds(std::int64_t samples, int site, const Pass& pass) {
  std::vector<std::uint64_t> seeds;
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto sample = static_cast<std::uint64_t>(pass.batch->number(i));
    seeds.push_back(seed_of(pass.batch->seed, sample, static_cast<std::uint64_t>(pass.block), static_cast<std::uint64_t>(site)));
  }
  return seeds;
}

at::Tensor dropout(const at::Tensor& x, double probability, int site, const Pass& pass) {
  if (!pass.drops || probability == 0) return x;
  const std::vector<std::uint64_t> seeds = sample_seeds(x.size(0), site, pass);
  return Dropout::apply(x, probability, std::vector<std::int64_t>(seeds.begin(), seeds.end()));
}

}  // namespace tessera::nn
