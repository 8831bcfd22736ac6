// Which implementation of the kernels runs.
//
// Each kernel has one written for CPUs, and one of ATen's operators (kernels/aten), which runs on every device that libtorch knows; some
// have one for CUDA besides (kernels/cuda). Callers do not choose: a kernel looks where its tensors lie.
#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::kernels {

enum class Kernels { cpu, aten, cuda };

// Which of a kernel's implementations computes on this tensor: on a CPU the one for CPUs; on a CUDA device the one for CUDA, where its
// library is there (cuda/library.hpp); ATen's everywhere else. The environment says otherwise with TESSERA_KERNELS=aten: ATen's
// everywhere, so that a host without accelerators runs what they would run. With TESSERA_KERNELS=cuda the kernels for CUDA run on CPUs as
// well, by a library that was built for that, and ATen's where there is none of them.
// Throws invalid_config for another value than these and "cpu", and where the library does not run on CPUs.
Kernels kernels_for(const at::Tensor& tensor);
inline bool use_cpu_kernels(const at::Tensor& tensor) { return kernels_for(tensor) == Kernels::cpu; }

// What the environment says, by an object while it lives: such objects nest; one thread makes them, while no kernel runs.
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
