#include <ATen/TensorOperators.h>
#include <ATen/ops/neg.h>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {

void rope(at::Tensor& x, std::int64_t heads, std::int64_t head_dim, std::int64_t seq, std::int64_t position, const at::Tensor& table,
          bool inverse, const at::Tensor& positions) {
  const std::int64_t half = head_dim / 2;
  const at::Tensor pairs = x.narrow(1, 0, heads * head_dim).view({x.size(0) / seq, seq, heads, 2, half});
  // f32 [2, batch or 1, seq, 1, half].
  const at::Tensor angles = positions.defined() ? table.index_select(1, positions.flatten()).view({2, pairs.size(0), seq, 1, half})
                                                : table.narrow(1, position, seq).view({2, 1, seq, 1, half});
  const at::Tensor cosine = angles[0];
  const at::Tensor sine = inverse ? at::neg(angles[1]) : angles[1];
  const at::Tensor first = pairs.select(3, 0);
  const at::Tensor second = pairs.select(3, 1);
  const at::Tensor turned = first * cosine - second * sine;
  second.copy_(second * cosine + first * sine);
  first.copy_(turned);
}

}  // namespace tessera::nn::kernels::aten
