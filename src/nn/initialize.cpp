#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include "base/hash.hpp"
#include "nn/block.hpp"
#include "nn/initializers.hpp"

namespace tessera::nn {
namespace {

void zero_padding(const model::ParameterSpec& spec, const BlockPlacement& placement, at::Tensor& value) {
  const std::int64_t held = value.size(spec.split_dim);
  const std::int64_t real =
      model::real_extent(spec.shape[static_cast<std::size_t>(spec.split_dim)], placement.tensor_size, placement.tensor_rank);
  if (real < held) value.narrow(spec.split_dim, real, held - real).zero_();
}

}  // namespace

void initialize(const model::ParameterSpec& parameter, const std::string& name, std::uint64_t seed, const BlockPlacement& placement,
                at::Tensor& shard) {
  ensure(shard.sizes() == at::IntArrayRef(shard_shape(parameter, placement)) && shard.is_contiguous() && shard.scalar_type() == at::kFloat,
         name + " is to be initialized in a contiguous f32 tensor of its shard's shape");
  ensure(parameter.expert_dim <= 0, name + " is of experts that are not its first dimension");
  // Initial values are computed on the host.
  if (!shard.is_cpu()) {
    at::Tensor on_host = at::empty(shard.sizes(), at::kFloat);
    initialize(parameter, name, seed, placement, on_host);
    shard.copy_(on_host);
    return;
  }
  const model::ParameterSpec spec = parameter.unstacked();
  const std::vector<std::int64_t> shape = shard_shape(spec, placement);
  at::Tensor value = shard.view(shape);
  const bool cut = spec.split_dim >= 0;
  // A shard is, for every combination of the dimensions before the cut one, one run of consecutive elements of the whole, and then
  // padding.
  std::int64_t inner = 1;  // elements of one place along the cut dimension
  for (std::size_t d = cut ? static_cast<std::size_t>(spec.split_dim) + 1 : 0; d < shape.size(); ++d) inner *= shape[d];
  const std::int64_t run = cut ? inner * shape[static_cast<std::size_t>(spec.split_dim)] : inner;
  const std::int64_t stride = cut ? inner * spec.shape[static_cast<std::size_t>(spec.split_dim)] : inner;
  const std::int64_t offset = cut ? run * placement.tensor_rank : 0;
  const std::uint64_t stream = seed_of(seed, hash64(name));
  const InitialValue& initial = initializer(spec.init.kind);
  // Experts of other ranks stand before this rank's.
  const std::int64_t before = spec.expert_dim == 0 ? placement.expert_rank * value.numel() : 0;
  float* elements = value.data_ptr<float>();
  at::parallel_for(0, value.numel(), 4096, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t place = before + i;
      const std::int64_t global = (place / run) * stride + offset + place % run;
      elements[i] = initial(parameter, stream, static_cast<std::uint64_t>(global));
    }
  });
  if (cut) zero_padding(spec, placement, value);
}

}  // namespace tessera::nn
