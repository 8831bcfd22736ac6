#include "checkpoint/element.hpp"

#include "base/error.hpp"

namespace tessera::checkpoint {

at::ScalarType scalar_type(ElementType type) {
  switch (type) {
    case ElementType::f32: return at::kFloat;
    case ElementType::bf16: return at::kBFloat16;
    case ElementType::i64: return at::kLong;
    case ElementType::f16: return at::kHalf;
    case ElementType::f64: return at::kDouble;
    case ElementType::f8_e4m3: return at::kFloat8_e4m3fn;
  }
  return at::kFloat;
}

ElementType element_type(at::ScalarType type) {
  for (const ElementType candidate : {ElementType::f32, ElementType::bf16, ElementType::i64, ElementType::f16, ElementType::f64})
    if (scalar_type(candidate) == type) return candidate;
  throw Error(ErrorCode::internal, text("a tensor of type ", c10::toString(type), " cannot be saved"));
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  ensure(tensor.is_contiguous() && tensor.device().is_cpu(), "a tensor to be saved must be contiguous and on the CPU");
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace tessera::checkpoint
