#include "nn/kernels/dropout.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <cmath>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {
namespace {

// z ^ (z >> places) of unsigned numbers; ATen shifts i64 as signed ones.
at::Tensor fold(const at::Tensor& z, std::int64_t places) {
  return z.bitwise_xor(z.bitwise_right_shift(places).bitwise_and_((std::int64_t{1} << (64 - places)) - 1));
}

// splitmix64's output function at counters (i64), as the CPU's kernel draws it. Products wrap around.
at::Tensor bits_of(const at::Tensor& seeds, const at::Tensor& counters) {
  const auto constant = [](std::uint64_t value) { return static_cast<std::int64_t>(value); };
  at::Tensor z = (counters + 1).mul_(constant(0x9E3779B97F4A7C15ull)) + seeds;
  z = fold(z, 30).mul_(constant(0xBF58476D1CE4E5B9ull));
  z = fold(z, 27).mul_(constant(0x94D049BB133111EBull));
  return fold(z, 31);
}

}  // namespace

void dropout(const at::Tensor& x, double probability, const std::vector<std::uint64_t>& seeds, at::Tensor& out) {
  if (x.numel() == 0) return;
  const std::int64_t samples = x.size(0);
  const std::int64_t each = x.numel() / samples;
  const std::int64_t threshold = std::lround(probability * 65536);
  // Four elements share 64 bits, the lowest ones first.
  const at::Tensor counters = at::arange((each + 3) / 4, x.options().dtype(at::kLong));
  const at::Tensor draws = bits_of(seeds_on(x.device(), seeds).unsqueeze(1), counters).view(at::kShort);
  const at::Tensor dropped = draws.to(at::kInt).bitwise_and_(0xFFFF).lt(threshold).narrow(1, 0, each);
  out.view({samples, each}).copy_((x.view({samples, each}) * (1 / (1 - probability))).masked_fill_(dropped, 0));
}

void dropout_rows(const at::Tensor& x, double probability, const std::vector<RowPlace>& places, at::Tensor& out) {
  std::vector<std::uint64_t> seeds;
  std::vector<std::int64_t> firsts;
  for (const RowPlace& place : places) {
    seeds.push_back(place.seed);
    firsts.push_back(place.first);
  }
  const at::TensorOptions options = x.options().dtype(at::kLong);
  const at::Tensor elements = at::tensor(firsts, options).unsqueeze(1) + at::arange(x.size(1), options);
  const at::Tensor dropped = dropped_at(seeds_on(x.device(), seeds).unsqueeze(1), elements, probability);
  out.copy_((x * (1 / (1 - probability))).masked_fill_(dropped, 0));
}

at::Tensor seeds_on(at::Device device, std::span<const std::uint64_t> seeds) {
  const std::vector<std::int64_t> words(seeds.begin(), seeds.end());
  return at::tensor(words, at::TensorOptions(device).dtype(at::kLong));
}

at::Tensor dropped_at(const at::Tensor& seeds, const at::Tensor& places, double probability) {
  const at::Tensor bits = bits_of(seeds, places.bitwise_right_shift(2));
  return bits.bitwise_right_shift(places.bitwise_and(3).mul_(16)).bitwise_and_(0xFFFF).lt(std::lround(probability * 65536));
}

}  // namespace tessera::nn::kernels::aten
