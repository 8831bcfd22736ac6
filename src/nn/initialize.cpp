#include <ATen/Parallel.h>
#include <cmath>
#include <numbers>

#include "base/hash.hpp"
#include "base/random.hpp"
#include "nn/block.hpp"

namespace tessera::nn {
namespace {

// A normal number from the element's own seed alone (Box and Muller 1958).
float normal_at(std::uint64_t stream, std::uint64_t index) {
  Random random(seed_of(stream, index));
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
  return static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * random.uniform()));
}

}  // namespace

void initialize(const model::ParameterSpec& spec, const std::string& name, std::uint64_t seed, const BlockPlacement& placement,
                at::Tensor& value) {
  const std::vector<std::int64_t> shape = shard_shape(spec, placement);
  ensure(value.sizes() == at::IntArrayRef(shape) && value.is_contiguous() && value.scalar_type() == at::kFloat,
         name + " is to be initialized in a contiguous f32 tensor of its shard's shape");
  if (spec.init.kind != model::Initializer::Kind::normal) {
    value.fill_(spec.init.kind == model::Initializer::Kind::ones ? 1.0 : 0.0);
    return;
  }
  // A shard is, for every combination of the dimensions before the cut one, one run of consecutive elements of the whole.
  const bool cut = spec.split_dim >= 0;
  std::int64_t run = 1;
  for (std::size_t d = cut ? static_cast<std::size_t>(spec.split_dim) : 0; d < shape.size(); ++d) run *= shape[d];
  const std::int64_t stride = cut ? run * placement.tensor_size : run;
  const std::int64_t offset = cut ? run * placement.tensor_rank : 0;
  const std::uint64_t stream = seed_of(seed, hash64(name));
  const float deviation = static_cast<float>(spec.init.deviation);
  float* elements = value.data_ptr<float>();
  at::parallel_for(0, value.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t global = (i / run) * stride + offset + i % run;
      elements[i] = deviation * normal_at(stream, static_cast<std::uint64_t>(global));
    }
  });
}

}  // namespace tessera::nn
