#include "nn/device_helper.hpp"

#include <gtest/gtest.h>
#include <cstdlib>
#include <string>

#include "base/folders.hpp"
#include "nn/device.hpp"

namespace tessera::nn::test {

using kernels::Kernels;
namespace {

// Before all tests: what asks libtorch for CUDA before its library is loaded (at::manual_seed does) leaves it without CUDA for good.
class FindDevice : public ::testing::Environment {
  void SetUp() override { test_device(); }
};
[[maybe_unused]] const ::testing::Environment* const found = ::testing::AddGlobalTestEnvironment(new FindDevice);

}  // namespace

at::Device test_device() {
  const char* const named = std::getenv("TESSERA_TEST_DEVICE");
  const at::Device device(named == nullptr ? "cpu" : named);
  return device_of(device.is_cpu() ? "cpu" : "nvidia", device.index());
}

std::vector<Side> sides() {
  const at::Device device = test_device();
  if (device.is_cpu())
    ::setenv("TESSERA_CUDA_KERNELS", (std::string(kBinaryFolder) + "/bin/libtessera_cuda_kernels_on_host.so").c_str(), 0);
  return {{device, Kernels::aten}, {device, Kernels::cuda}};
}

const char* name_of(Kernels kernels) { return kernels == Kernels::cpu ? "cpu" : kernels == Kernels::aten ? "aten" : "cuda"; }

}  // namespace tessera::nn::test
