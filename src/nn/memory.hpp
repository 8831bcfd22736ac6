// Memory of tensors on a CPU.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace tessera::nn {

// Called once, at the start of the process that trains, before its first tensor: denormal numbers count as zero in this thread and in those
// it starts. Programs that call it allocate with jemalloc, which keeps freed memory.
void configure_memory();

// A flat tensor of zeros on pages of its own: it takes memory where it has been written to.
at::Tensor paged_zeros(std::int64_t count, at::ScalarType type);
// Gives the memory of such a tensor back to the kernel. The tensor and its views stay, and are zeros again.
void release_pages(const at::Tensor& paged);

}  // namespace tessera::nn
