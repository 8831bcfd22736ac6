#include "train/auc.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "train/job_helper.hpp"

namespace tessera::train {
namespace {

at::Tensor scored(const std::vector<float>& scores, const std::vector<float>& labels) {
  return at::stack({at::tensor(scores), at::tensor(labels)});
}

double by_pairs(const at::Tensor& of) {
  double won = 0, pairs = 0;
  for (std::int64_t i = 0; i < of.size(1); ++i)
    for (std::int64_t j = 0; j < of.size(1); ++j) {
      if (of[1][i].item<float>() < 0.5 || of[1][j].item<float>() > 0.5) continue;
      const float ahead = of[0][i].item<float>() - of[0][j].item<float>();
      won += ahead > 0 ? 1 : ahead == 0 ? 0.5 : 0;
      ++pairs;
    }
  return won / pairs;
}

TEST(Auc, IsTheShareOfPairsInTheRightOrder) {
  EXPECT_EQ(area_under_curve(scored({1, 2, 3, 4}, {0, 0, 1, 1})), 1.0);
  EXPECT_EQ(area_under_curve(scored({4, 3, 2, 1}, {0, 0, 1, 1})), 0.0);
  EXPECT_EQ(area_under_curve(scored({2, 2, 2, 2}, {0, 1, 0, 1})), 0.5);
  EXPECT_FALSE(area_under_curve(scored({1, 2}, {1, 1})));
  EXPECT_FALSE(area_under_curve(at::empty({2, 0})));
  at::manual_seed(1);
  const at::Tensor many = at::stack({at::randint(0, 20, {150}).to(at::kFloat), at::randint(0, 2, {150}).to(at::kFloat)});
  EXPECT_NEAR(*area_under_curve(many), by_pairs(many), 1e-12);
}

TEST(Auc, IsThatOfTheSamplesOfAllRanks) {
  at::manual_seed(2);
  const at::Tensor all = at::stack({at::randn({30}), at::randint(0, 2, {30}).to(at::kFloat)});
  on_ranks(3, [&](comm::Communicator& comm) {
    const std::int64_t begins[] = {0, 12, 12, 30};  // the second one has none
    const at::Tensor own = all.narrow(1, begins[comm.rank()], begins[comm.rank() + 1] - begins[comm.rank()]);
    EXPECT_EQ(area_under_curve(comm, own), area_under_curve(all));
  });
}

TEST(CalibratedLogLoss, IsOfTheCorrectedProbabilities) {
  at::manual_seed(3);
  const at::Tensor all = at::stack({3 * at::randn({30}), at::randint(0, 2, {30}).to(at::kFloat)});
  constexpr double kNegatives = 0.1;
  double expected = 0;
  for (std::int64_t i = 0; i < 30; ++i) {
    const double probability = 1 / (1 + std::exp(-all[0][i].item<double>()));
    const double corrected = probability / (probability + (1 - probability) / kNegatives);
    expected -= std::log(all[1][i].item<float>() > 0.5 ? corrected : 1 - corrected) / 30;
  }
  on_ranks(3, [&](comm::Communicator& comm) {
    const std::int64_t begins[] = {0, 12, 12, 30};
    const at::Tensor own = all.narrow(1, begins[comm.rank()], begins[comm.rank() + 1] - begins[comm.rank()]);
    EXPECT_NEAR(calibrated_log_loss(comm, own, kNegatives), expected, 1e-6);
  });
}

}  // namespace
}  // namespace tessera::train
