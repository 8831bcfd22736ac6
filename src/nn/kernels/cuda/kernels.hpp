// Internal: the kernels as CUDA's, for tensors that `kernels_for` gives to them. Each does what the function of its name does
// (kernels/NAME.hpp, optimizer.hpp), queued on the device's current stream. Throws internal when a launch fails.
#pragma once

#include "nn/optimizer.hpp"

namespace tessera::nn::kernels::cuda {

void rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd);
void add_rms_norm(at::Tensor& sum, const at::Tensor& x, const at::Tensor& weight, double epsilon, at::Tensor& y, at::Tensor& rstd);
void rms_norm_again(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd, at::Tensor& y);
void rms_norm_backward(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                       const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_grad);

void rope(at::Tensor& x, std::int64_t heads, std::int64_t head_dim, std::int64_t seq, std::int64_t position, const at::Tensor& table,
          bool inverse, const at::Tensor& positions);

void swiglu(const at::Tensor& gate_up, at::Tensor& hidden);
void swiglu_backward(at::Tensor& gate_up, at::Tensor& hidden);

void cross_entropy_maximum(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_column, at::Tensor& maximum,
                           at::Tensor& target_logit);
void cross_entropy_exponentials(at::Tensor& logits, const at::Tensor& maximum, at::Tensor& sum);
void cross_entropy_gradient(const at::Tensor& exponentials, const at::Tensor& targets, std::int64_t first_column, const at::Tensor& sum,
                            double scale, at::Tensor& gradient);

void adamw_step(at::Tensor& master, const at::Tensor& grad, at::Tensor& exp_avg, at::Tensor& exp_avg_sq, at::Tensor& compute,
                const AdamW& options);
at::Tensor squared_norm(const at::Tensor& flat);  // f64 []

}  // namespace tessera::nn::kernels::cuda
