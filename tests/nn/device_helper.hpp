// The kernels that are held against those for CPUs, and where they run.
#pragma once

#include <ATen/core/Tensor.h>
#include <vector>

#include "nn/kernels/device.hpp"

namespace tessera::nn::test {

// That of TESSERA_TEST_DEVICE (`./dev test --gpu` sets it); without it the CPU. Throws not_found where it is not there.
at::Device test_device();

struct Side {
  at::Device device;
  kernels::Kernels kernels;
};
// ATen's and CUDA's kernels on the test's device. On the CPU those of CUDA are the host's build of them.
std::vector<Side> sides();
const char* name_of(kernels::Kernels kernels);

}  // namespace tessera::nn::test
