// Internal: the shared library with the CUDA kernels, which nvcc has made and this program was not linked with.
#pragma once

#include "nn/kernels/cuda/interface.hpp"

namespace tessera::nn::kernels::cuda {

struct Library {
  decltype(&tessera_cuda_adamw) adamw;
  decltype(&tessera_cuda_square_sum) square_sum;
  decltype(&tessera_cuda_rms_norm) rms_norm;
  decltype(&tessera_cuda_rms_norm_again) rms_norm_again;
  decltype(&tessera_cuda_rms_norm_backward) rms_norm_backward;
  decltype(&tessera_cuda_slabs) slabs;
  decltype(&tessera_cuda_rope) rope;
  decltype(&tessera_cuda_swiglu) swiglu;
  decltype(&tessera_cuda_swiglu_backward) swiglu_backward;
  decltype(&tessera_cuda_cross_entropy_maximum) cross_entropy_maximum;
  decltype(&tessera_cuda_cross_entropy_exponentials) cross_entropy_exponentials;
  decltype(&tessera_cuda_cross_entropy_gradient) cross_entropy_gradient;
  decltype(&tessera_cuda_on_host) on_host;
};

// The file that TESSERA_CUDA_KERNELS names, or libtessera_cuda_kernels.so beside the running program; loaded once, and for good. Null
// where there is no such file beside the program. Throws io when a file is there, or was named, and cannot be loaded. Any thread.
const Library* library();

}  // namespace tessera::nn::kernels::cuda
