// Cross-entropy over rows of logits in the three steps between which tensor-parallel ranks exchange: the maximum, then the
// sum of exponentials and the target's logit. Logits are f32 [rows, width], the vocabulary's columns from `first_column`
// on; targets are i64 [rows], -1 for a row that is not counted. Statistics are f32 [rows].
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace tessera::nn::kernels {

// Each row's maximum, and the logit of its target (0 when another rank's columns hold it).
void cross_entropy_maximum(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_column, at::Tensor& maximum,
                           at::Tensor& target_logit);
// logits become exp(logit - maximum); sum is each row's sum of them.
void cross_entropy_exponentials(at::Tensor& logits, const at::Tensor& maximum, at::Tensor& sum);
// gradient [rows, width] (f32, may be the exponentials; or bf16) = scale * (softmax - one_hot(target)), 0 for rows not counted.
void cross_entropy_gradient(const at::Tensor& exponentials, const at::Tensor& targets, std::int64_t first_column, const at::Tensor& sum,
                            double scale, at::Tensor& gradient);

// Stays on the device of the logits until somebody wants the numbers.
struct LossSum {
  explicit LossSum(const at::Tensor& like);
  at::Tensor loss;    // f64 []
  at::Tensor tokens;  // i64 []
};
// Adds log(sum) + maximum - target_logit of each counted row, in row order.
void add_losses(const at::Tensor& targets, const at::Tensor& maximum, const at::Tensor& sum, const at::Tensor& target_logit,
                LossSum& total);

}  // namespace tessera::nn::kernels
