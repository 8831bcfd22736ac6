// Memory of tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace tessera::nn {

// Called once, at the start of the process that trains, before its first tensor: denormal numbers count as zero in this thread and in those
// it starts. Programs that call it allocate with jemalloc, which keeps freed memory.
void configure_memory();

// A flat tensor that holds anything. On a CPU it lies apart from the heap, and takes memory where it has been written to.
at::Tensor releasable(std::int64_t count, at::ScalarType type, at::Device device);
// Gives the memory of such a tensor back, while the tensor and its views stay. Nobody uses them before hold().
void release(const at::Tensor& tensor);
// Takes memory for it again, which holds anything; false where it has its memory still.
bool hold(const at::Tensor& tensor);

}  // namespace tessera::nn
