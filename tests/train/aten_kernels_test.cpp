// What accelerators run, ATen's kernels, through whole runs on the CPU.
#include <gtest/gtest.h>

#include "nn/kernels/device.hpp"
#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

using nn::kernels::Kernels;
using nn::kernels::KernelsScope;

Curve curve_by(Kernels kernels, const model::JobSpec& job, const Degrees& degrees) {
  const KernelsScope scope(kernels);
  return train_curve(job, degrees, 6);
}

struct Case {
  const char* what;
  model::JobSpec job;
  std::vector<Degrees> degrees;
  double losses, norms;  // differ by less
};

TEST(AtenKernels, TrainTheSameModelAsOurs) {
  const std::vector<Case> cases = {
      {"dense",
       tiny_job(),
       {{},
        {.dp = 2, .tp = 2, .zero = 3, .micro_batches = 2, .recompute = model::Recompute::selective, .sequence_parallel = true},
        {.pp = 2, .micro_batches = 4, .schedule = plan::Schedule::zb_h1, .cp = 2}},
       1e-5,
       1e-4},
      {"bf16", tiny_job("precision: bf16"), {{}, {.tp = 2, .cp = 2, .context = model::ContextKind::ulysses}}, 3e-3, 3e-2},
      {"latent", tiny_latent_job(), {{}, {.tp = 2}, {.cp = 2}}, 1e-5, 1e-4},
      {"experts", tiny_experts_job(), {{}, {.dp = 2, .ep = 2}}, 1e-5, 1e-4},
  };
  for (const Case& one : cases) {
    const Curve expected = curve_by(Kernels::cpu, one.job, {});
    for (const Degrees& degrees : one.degrees) {
      const Curve curve = curve_by(Kernels::aten, one.job, degrees);
      EXPECT_LT(worst_difference(curve.losses, expected.losses), one.losses) << one.what << " " << to_text(degrees);
      EXPECT_LT(worst_difference(curve.norms, expected.norms), one.norms) << one.what << " " << to_text(degrees);
      // Other kernels round otherwise.
      EXPECT_NE(curve.norms, expected.norms) << one.what << " " << to_text(degrees);
    }
  }
}

}  // namespace
}  // namespace tessera::train
