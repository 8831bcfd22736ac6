// Memory of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace tessera::nn {

// Called once, at the start of the process that trains, before its first tensor: denormal numbers count as zero in this thread and in those
// it starts. Programs that call it allocate with jemalloc, which keeps freed memory.
void configure_memory();

// A flat tensor of zeros whose memory can be given back while it and its views stay. On a CPU it lies on pages of its own, and takes
// memory where it has been written to.
at::Tensor releasable_zeros(std::int64_t count, at::ScalarType type, at::Device device);
// Gives the memory of such a tensor back. On another device than a CPU nobody uses it before hold() has been called.
void release(const at::Tensor& tensor);
// It is zeros after release(), and as it was otherwise.
void hold(const at::Tensor& tensor);

}  // namespace tessera::nn
