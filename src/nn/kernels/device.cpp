#include "nn/kernels/device.hpp"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include "base/error.hpp"
#include "nn/kernels/cuda/library.hpp"
#include "nn/kernels/vector_math.hpp"

namespace tessera::nn::kernels {
namespace {

Kernels from_environment() {
  const char* const value = std::getenv("TESSERA_KERNELS");
  const std::string_view name = value == nullptr ? "" : value;
  if (name == "aten") return Kernels::aten;
  if (name == "cuda") return Kernels::cuda;
  if (name.empty() || name == "cpu") return Kernels::cpu;
  throw Error(ErrorCode::invalid_config, text("TESSERA_KERNELS is \"", name, "\""), {}, "aten, cpu or cuda");
}

// Ranks that are threads of a test share it. Whichever kernel runs first asks for it, before it computes.
std::atomic<Kernels>& chosen() {
  static std::atomic<Kernels> kernels = [] {
    settle_vector_math();
    return from_environment();
  }();
  return kernels;
}

bool on_host() {
  const cuda::Library* const library = cuda::library();
  if (library != nullptr && library->on_host() != 0) return true;
  throw Error(ErrorCode::invalid_config, "the CUDA kernels cannot run on a CPU", {}, "a library that is built for the host",
              "name it in TESSERA_CUDA_KERNELS, or leave TESSERA_KERNELS away");
}

}  // namespace

Kernels kernels_for(const at::Tensor& tensor) {
  const Kernels kernels = chosen().load(std::memory_order_relaxed);
  if (kernels == Kernels::aten) return Kernels::aten;
  if (tensor.is_cpu()) return kernels == Kernels::cuda && on_host() ? Kernels::cuda : Kernels::cpu;
  return tensor.is_cuda() && cuda::library() != nullptr ? Kernels::cuda : Kernels::aten;
}

KernelsScope::KernelsScope(Kernels kernels) : before_(chosen().exchange(kernels)) {}

KernelsScope::~KernelsScope() { chosen().store(before_); }

}  // namespace tessera::nn::kernels
