// Internal: from a tensor's dtype to the kernels' element type.
#pragma once

#include <ATen/core/Tensor.h>

#include "base/error.hpp"
#include "nn/kernels/element.hpp"

namespace tessera::nn::kernels {

// Calls body(T{}) with T = float or Bf16.
template <typename Body>
void dispatch(const at::Tensor& tensor, const Body& body) {
  if (tensor.scalar_type() == at::kFloat) {
    body(float{});
  } else if (tensor.scalar_type() == at::kBFloat16) {
    body(Bf16{});
  } else {
    throw Error(ErrorCode::internal, text("a kernel was given elements of type ", c10::toString(tensor.scalar_type())), {},
                "Float or BFloat16");
  }
}

template <typename T>
T* data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}

// Rows each task of a parallel loop should at least take, so that it touches some 32 KiB.
inline std::int64_t row_grain(std::int64_t width) { return width >= 8192 ? 1 : 8192 / (width > 0 ? width : 1) + 1; }

}  // namespace tessera::nn::kernels
