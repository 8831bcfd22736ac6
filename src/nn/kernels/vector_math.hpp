// MKL's vector functions, which ATen's operators call on CPUs (at::exp, at::log, at::sqrt).
#pragma once

namespace tessera::nn::kernels {

// Calls each of them once, on this thread. MKL picks a function's code when it is first called, and where several threads call it first at
// the same time, one of them may compute its share with code of another accuracy: errors of some thousand units in the last place, in
// that one call alone (oneMKL 2024.2, which torch's wheels contain; PyTorch's issue 188792). Who computes by ATen calls this before.
void settle_vector_math();

}  // namespace tessera::nn::kernels
