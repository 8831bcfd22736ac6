#include "nn/device_helper.hpp"

#include <cstdlib>

#include "nn/device.hpp"

namespace tessera::nn::test {

using kernels::Kernels;

at::Device test_device() {
  const char* const named = std::getenv("TESSERA_TEST_DEVICE");
  const at::Device device(named == nullptr ? "cpu" : named);
  return device_of(device.is_cpu() ? "cpu" : "nvidia", device.index());
}

std::vector<Side> sides() {
  const at::Device device = test_device();
  if (device.is_cpu()) ::setenv("TESSERA_CUDA_KERNELS", TESSERA_BINARY_DIR "/bin/libtessera_cuda_kernels_on_host.so", 0);
  return {{device, Kernels::aten}, {device, Kernels::cuda}};
}

const char* name_of(Kernels kernels) { return kernels == Kernels::cpu ? "cpu" : kernels == Kernels::aten ? "aten" : "cuda"; }

}  // namespace tessera::nn::test
