#include "nn/optimizer.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <cmath>
#include <limits>
#include <vector>

#include "nn/device_helper.hpp"

namespace tessera::nn {
namespace {

// torch.optim.AdamW, single tensor, in double.
struct PlainAdamW {
  at::Tensor value, exp_avg, exp_avg_sq;
  void step(const at::Tensor& grad, const AdamW& o) {
    const at::Tensor g = grad.to(at::kDouble) * o.grad_scale;
    value = value * (1 - o.lr * o.weight_decay);
    exp_avg = exp_avg * o.beta1 + g * (1 - o.beta1);
    exp_avg_sq = exp_avg_sq * o.beta2 + g * g * (1 - o.beta2);
    const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(o.step));
    const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(o.step));
    value = value - o.lr / correction1 * exp_avg / (exp_avg_sq.sqrt() / std::sqrt(correction2) + o.epsilon);
  }
};

TEST(AdamWStep, FollowsTheDefinitionOverSteps) {
  const std::int64_t count = 100003;
  at::Tensor master = at::randn({count});
  at::Tensor first = at::zeros({count});
  at::Tensor second = at::zeros({count});
  at::Tensor compute = at::empty({count}, at::kBFloat16);
  PlainAdamW plain{master.to(at::kDouble), at::zeros({count}, at::kDouble), at::zeros({count}, at::kDouble)};
  for (std::int64_t step = 1; step <= 20; ++step) {
    const at::Tensor grad = at::randn({count}) * 0.1;
    const AdamW options{1e-2, 0.9, 0.999, 1e-8, 0.1, step, 0.7};
    adamw_step(master, grad, first, second, compute, options);
    plain.step(grad, options);
  }
  EXPECT_LT((master.to(at::kDouble) - plain.value).abs().max().item<double>(), 5e-6);  // twenty roundings of values up to 5
  EXPECT_LT((second.to(at::kDouble) - plain.exp_avg_sq).abs().max().item<double>(), 1e-8);
  EXPECT_TRUE(at::equal(compute, master.to(at::kBFloat16)));
}

TEST(AdamWStep, LeavesAnUndefinedComputeCopyAlone) {
  at::Tensor master = at::ones({10});
  at::Tensor first = at::zeros({10});
  at::Tensor second = at::zeros({10});
  at::Tensor none;
  adamw_step(master, at::ones({10}), first, second, none, {0.1, 0.9, 0.95, 1e-8, 0.0, 1, 1.0});
  EXPECT_LT((master - 0.9).abs().max().item<float>(), 1e-6f);
}

TEST(SgdStep, FollowsTheDefinitionWithAndWithoutMomentum) {
  for (const double momentum : {0.0, 0.9}) {
    at::Tensor master = at::randn({5001});
    at::Tensor buffer = at::full({5001}, std::numeric_limits<float>::quiet_NaN());  // must not be read at first
    at::Tensor none;
    at::Tensor expected = master.clone();
    at::Tensor velocity;
    for (int step = 0; step < 5; ++step) {
      const at::Tensor grad = at::randn({5001});
      sgd_step(master, grad, buffer, none, {0.1, momentum, 0.01, step == 0, 0.5});
      const at::Tensor g = grad * 0.5 + expected * 0.01;
      velocity = step == 0 || momentum == 0.0 ? g : velocity * momentum + g;
      expected = expected - 0.1 * velocity;
    }
    EXPECT_LT((master - expected).abs().max().item<float>(), 1e-5f) << momentum;
  }
}

TEST(SquaredNorm, IsExactEnoughAndRepeatable) {
  for (const std::int64_t count : {0, 1, 17, 8192, 1000003}) {
    const at::Tensor x = at::randn({count});
    const double expected = x.to(at::kDouble).pow(2).sum().item<double>();
    EXPECT_NEAR(squared_norm(x), expected, 1e-12 * expected) << count;
    EXPECT_EQ(squared_norm(x), squared_norm(x));
  }
}

TEST(SquaredNorm, OfSeveralTensorsIsTheirSum) {
  const at::Tensor first = at::randn({9001}), second = at::randn({7});
  for (const test::Side& side : test::sides()) {
    const kernels::KernelsScope scope(side.kernels);
    const std::vector<at::Tensor> both = {first.to(side.device), second.to(side.device)};
    EXPECT_NEAR(squared_norm(both), squared_norm(both[0]) + squared_norm(both[1]), 1e-12 * 9001) << test::name_of(side.kernels);
    EXPECT_EQ(squared_norm(std::vector<at::Tensor>()), 0);
  }
}

TEST(SquaredNorm, LetsNaNAndInfinityThrough) {
  at::Tensor x = at::ones({100});
  x[50] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(squared_norm(x)));
  x[50] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(squared_norm(x)));
}

}  // namespace
}  // namespace tessera::nn
