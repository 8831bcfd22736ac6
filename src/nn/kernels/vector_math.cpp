#include "nn/kernels/vector_math.hpp"

#include <ATen/ATen.h>

namespace tessera::nn::kernels {

void settle_vector_math() {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::full({1}, 0.5, at::TensorOptions(at::kCPU).dtype(type));
    for (at::Tensor (*const function)(const at::Tensor&) :
         {at::acos,   at::asin, at::atan,  at::cos,   at::cosh, at::erf, at::erfc, at::erfinv, at::exp, at::expm1,
          at::lgamma, at::log,  at::log10, at::log1p, at::log2, at::sin, at::sinh, at::sqrt,   at::tan, at::tanh})
      function(x);
  }
}

}  // namespace tessera::nn::kernels
