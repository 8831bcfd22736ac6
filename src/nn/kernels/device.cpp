#include "nn/kernels/device.hpp"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.hpp"

namespace tessera::nn::kernels {
namespace {

Kernels from_environment() {
  const char* const value = std::getenv("TESSERA_KERNELS");
  const std::string_view name = value == nullptr ? "" : value;
  if (name == "aten") return Kernels::aten;
  if (name.empty() || name == "cpu") return Kernels::cpu;
  throw Error(ErrorCode::invalid_config, text("TESSERA_KERNELS is \"", name, "\""), {}, "aten or cpu");
}

// Ranks that are threads of a test share it.
std::atomic<Kernels>& on_cpus() {
  static std::atomic<Kernels> chosen = from_environment();
  return chosen;
}

}  // namespace

bool use_cpu_kernels(const at::Tensor& tensor) { return tensor.is_cpu() && on_cpus().load(std::memory_order_relaxed) == Kernels::cpu; }

KernelsScope::KernelsScope(Kernels kernels) : before_(on_cpus().exchange(kernels)) {}

KernelsScope::~KernelsScope() { on_cpus().store(before_); }

}  // namespace tessera::nn::kernels
