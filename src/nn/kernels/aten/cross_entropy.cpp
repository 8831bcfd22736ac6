#include "nn/kernels/cross_entropy.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sum.h>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {
namespace {

struct TargetColumns {
  at::Tensor places;     // i64 [rows, 1], 0 where the target is elsewhere
  at::Tensor elsewhere;  // bool [rows, 1]
};

TargetColumns columns_of(const at::Tensor& targets, std::int64_t first_column, std::int64_t width) {
  const at::Tensor columns = (targets - first_column).unsqueeze(1);
  const at::Tensor elsewhere = columns.lt(0).bitwise_or_(columns.ge(width));
  return {columns.masked_fill(elsewhere, 0), elsewhere};
}

}  // namespace

void cross_entropy_maximum(const at::Tensor& logits, const at::Tensor& targets, std::int64_t first_column, at::Tensor& maximum,
                           at::Tensor& target_logit) {
  at::amax_out(maximum, logits, {1});
  const TargetColumns target = columns_of(targets, first_column, logits.size(1));
  target_logit.copy_(logits.gather(1, target.places).masked_fill_(target.elsewhere, 0).squeeze(1));
}

void cross_entropy_exponentials(at::Tensor& logits, const at::Tensor& maximum, at::Tensor& sum) {
  logits.sub_(maximum.unsqueeze(1)).exp_();
  at::sum_out(sum, logits, at::IntArrayRef{1});
}

void cross_entropy_gradient(const at::Tensor& exponentials, const at::Tensor& targets, std::int64_t first_column, const at::Tensor& sum,
                            double scale, at::Tensor& gradient) {
  const TargetColumns target = columns_of(targets, first_column, exponentials.size(1));
  const at::Tensor factor = (scale / sum).masked_fill_(targets.lt(0), 0).unsqueeze(1);
  // Where the target is elsewhere, it is the gradient of column 0 that is written once more.
  const at::Tensor of_target = exponentials.gather(1, target.places) * factor - (1 - target.elsewhere.to(at::kFloat)) * scale;
  at::mul_out(gradient, exponentials, factor);
  gradient.scatter_(1, target.places, of_target.to(gradient.scalar_type()));
}

void add_losses(const at::Tensor& targets, const at::Tensor& maximum, const at::Tensor& sum, const at::Tensor& target_logit,
                LossSum& total) {
  const at::Tensor losses = sum.to(at::kDouble).log_().add_(maximum).sub_(target_logit);
  total.loss.add_(losses.masked_fill_(targets.lt(0), 0).sum());
  total.tokens.add_(targets.ge(0).sum());
}

}  // namespace tessera::nn::kernels::aten
