// Internal: the angles by which rotary positions turn heads.
#pragma once

#include "nn/kernels/rope.hpp"
#include "nn/tensor_parallel.hpp"

namespace tessera::nn {

class Rotation {
 public:
  // Of heads, or parts of them, that have `dim` dimensions; by the block's "rope_theta" and how it scales it.
  Rotation(const model::BlockSpec& spec, std::int64_t dim, at::Device device);

  // The cosines and sines of as many positions as a pass reaches: f32 [2, positions, dim / 2].
  const at::Tensor& table(const Rows& rows, const Pass& pass);
  // Where each row stands, i64 [rows]; undefined where samples are whole sequences, in order, from Pass::position on.
  static at::Tensor positions(const Rows& rows, const Pass& pass);

 private:
  std::int64_t dim_;
  kernels::RopeFrequencies frequencies_;
  at::Tensor table_;
};

}  // namespace tessera::nn
