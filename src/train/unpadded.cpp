#include "train/unpadded.hpp"

#include <ATen/ops/empty.h>
#include <algorithm>

namespace tessera::train {
namespace {

// Calls visit(place in the part, place among its real elements, count) for every stretch of real elements of a part.
template <typename Visit>
void for_real(std::int64_t held, std::int64_t real, std::int64_t begin, std::int64_t count, const Visit& visit) {
  std::int64_t packed = 0;
  for (std::int64_t at = begin; at < begin + count;) {
    const std::int64_t run = at / held * held;
    const std::int64_t end = std::min(begin + count, run + real);
    if (at < end) {
      visit(at - begin, packed, end - at);
      packed += end - at;
    }
    at = run + held;
  }
}

}  // namespace

Unpadded::Unpadded(const model::ParameterSpec& parameter, const nn::BlockPlacement& placement) {
  const model::ParameterSpec spec = parameter.unstacked();
  held_ = spec.shard_count(placement.tensor_size);
  real_ = held_;
  if (spec.split_dim < 0) return;
  const std::size_t cut = static_cast<std::size_t>(spec.split_dim);
  std::int64_t inner = 1;
  for (std::size_t d = cut + 1; d < spec.shape.size(); ++d) inner *= spec.shape[d];
  const std::int64_t real = model::real_extent(spec.shape[cut], placement.tensor_size, placement.tensor_rank);
  const std::int64_t held = spec.shard_extent(placement.tensor_size);
  if (real == held) return;
  held_ = inner * held;
  real_ = inner * real;
}

bool Unpadded::side_by_side(std::int64_t begin, std::int64_t count) const {
  return held_ == real_ || count == 0 || begin / held_ == (begin + count - 1) / held_;
}

at::Tensor Unpadded::pack(const at::Tensor& part, std::int64_t begin) const {
  const std::int64_t real = before(begin + part.numel()) - before(begin);
  if (side_by_side(begin, part.numel())) return part.narrow(0, 0, real);
  at::Tensor packed = at::empty({real}, part.options());
  for_real(held_, real_, begin, part.numel(),
           [&](std::int64_t from, std::int64_t to, std::int64_t count) { packed.narrow(0, to, count).copy_(part.narrow(0, from, count)); });
  return packed;
}

void Unpadded::unpack(const at::Tensor& packed, at::Tensor part, std::int64_t begin) const {
  if (side_by_side(begin, part.numel())) {
    const at::Tensor real = part.narrow(0, 0, packed.numel());
    if (real.data_ptr() != packed.data_ptr()) real.copy_(packed);
    return;
  }
  for_real(held_, real_, begin, part.numel(),
           [&](std::int64_t to, std::int64_t from, std::int64_t count) { part.narrow(0, to, count).copy_(packed.narrow(0, from, count)); });
}

}  // namespace tessera::train
