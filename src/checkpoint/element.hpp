// Internal: between torch's element types and the file's.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstddef>
#include <span>

#include "checkpoint/safetensors.hpp"

namespace tessera::checkpoint {

at::ScalarType scalar_type(ElementType type);
// Throws internal for a type that no file is written with.
ElementType element_type(at::ScalarType type);
// The bytes of a contiguous tensor on the CPU, which must outlive the span.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

}  // namespace tessera::checkpoint
