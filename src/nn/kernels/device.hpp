// Which implementation of the kernels runs.
//
// Each kernel has two: one written for CPUs, and one of ATen's operators (kernels/aten), which runs on every device that libtorch knows.
// Callers do not choose: a kernel looks where its tensors lie.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::kernels {

// Whether what is written for CPUs computes on this tensor: where it lies on a CPU and nothing asks for ATen's kernels there. The
// environment does with TESSERA_KERNELS=aten, so that a host without accelerators runs what they would run. Throws invalid_config for
// another value than "aten" or "cpu".
bool use_cpu_kernels(const at::Tensor& tensor);

enum class Kernels { cpu, aten };

// What runs on this process's CPUs while the object lives, whatever the environment says. Such objects nest; one thread makes them, while
// no kernel runs.
class KernelsScope {
 public:
  explicit KernelsScope(Kernels kernels);
  ~KernelsScope();
  KernelsScope(const KernelsScope&) = delete;
  KernelsScope& operator=(const KernelsScope&) = delete;

 private:
  Kernels before_;
};

}  // namespace tessera::nn::kernels
