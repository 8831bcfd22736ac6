#include "nn/device.hpp"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>
#include <torch/version.h>
#include <cstdlib>
#include <filesystem>

#include "base/error.hpp"

namespace tessera::nn {
namespace {

at::DeviceType type_of(const std::string& vendor) { return vendor == "cpu" ? at::kCPU : at::kCUDA; }

void prepare_cuda() {
  // Read when CUDA starts: kernels of NCCL wait for other ranks, and streams that share a queue would wait with them.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  if (c10::impl::hasDeviceGuardImpl(at::kCUDA)) return;
  // A wheel for CUDA has its operators in a library that programs for CPUs are not linked with.
  Dl_info found{};
  if (::dladdr(reinterpret_cast<void*>(&c10::GetAllocator), &found) == 0) return;
  ::dlopen((std::filesystem::path(found.dli_fname).parent_path() / "libtorch_cuda.so").c_str(), RTLD_NOW | RTLD_GLOBAL);
}

}  // namespace

int device_count(const std::string& vendor) {
  const at::DeviceType type = type_of(vendor);
  if (type == at::kCUDA) prepare_cuda();
  return c10::impl::hasDeviceGuardImpl(type) ? c10::impl::getDeviceGuardImpl(type)->deviceCount() : 0;
}

at::Device device_of(const std::string& vendor, int index) {
  const at::DeviceType type = type_of(vendor);
  if (type == at::kCPU) return type;
  const int count = device_count(vendor);
  if (index < count) return {type, static_cast<c10::DeviceIndex>(index)};
  throw Error(ErrorCode::not_found, text("there is no device ", index, " of ", vendor, " here: libtorch ", TORCH_VERSION, " finds ", count),
              {}, "a driver, and a libtorch that was built for these devices", "`tessera doctor` shows the devices that the driver knows");
}

Bytes peak_memory(at::Device device) {
  auto* const allocator = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  if (device.is_cpu() || allocator == nullptr) return Bytes(0);
  const auto& all = allocator->getDeviceStats(device.index()).allocated_bytes;
  return Bytes(all.at(static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE)).peak);
}

}  // namespace tessera::nn
