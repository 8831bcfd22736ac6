#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "train/generate.hpp"

namespace tessera::train {
namespace {

// Probabilities 0.4, 0.3, 0.2 and 0.1 of tokens 2, 0, 3 and 1.
const std::vector<float> kLogits = {std::log(0.3f), std::log(0.1f), std::log(0.4f), std::log(0.2f)};

std::set<std::uint32_t> drawn(const Sampling& sampling) {
  std::set<std::uint32_t> out;
  for (std::uint64_t draw = 0; draw < 1000; ++draw) out.insert(sample(kLogits, sampling, draw));
  return out;
}

TEST(Sample, TakesTheMostLikelyAtTemperatureZeroAndTheFirstOfEquals) {
  for (std::uint64_t draw = 0; draw < 10; ++draw) EXPECT_EQ(sample(kLogits, {.temperature = 0}, draw), 2u);
  EXPECT_EQ(sample({1, 3, 3, 2}, {.temperature = 0}, 0), 1u);
  EXPECT_EQ(sample({1, 3, 3, 2}, {.top_k = 1}, 0), 1u);
}

TEST(Sample, TopKAndTopPKeepTheLikeliest) {
  EXPECT_EQ(drawn({}), (std::set<std::uint32_t>{0, 1, 2, 3}));
  EXPECT_EQ(drawn({.top_k = 2}), (std::set<std::uint32_t>{0, 2}));
  EXPECT_EQ(drawn({.top_k = 100}), (std::set<std::uint32_t>{0, 1, 2, 3}));
  // The smallest set with at least this probability.
  EXPECT_EQ(drawn({.top_p = 0.65}), (std::set<std::uint32_t>{0, 2}));
  EXPECT_EQ(drawn({.top_p = 0.75}), (std::set<std::uint32_t>{0, 2, 3}));
  EXPECT_EQ(drawn({.top_p = 0}), (std::set<std::uint32_t>{2}));
}

TEST(Sample, DrawsAsOftenAsTheProbabilitiesSay) {
  constexpr int kDraws = 20'000;
  for (const double temperature : {1.0, 0.5}) {
    std::vector<int> counts(4);
    for (int draw = 0; draw < kDraws; ++draw) ++counts[sample(kLogits, {.temperature = temperature}, static_cast<std::uint64_t>(draw))];
    double total = 0;
    for (const float logit : kLogits) total += std::exp(logit / temperature);
    // Five standard deviations of a binomial.
    for (std::size_t token = 0; token < 4; ++token)
      EXPECT_NEAR(counts[token] / double{kDraws}, std::exp(kLogits[token] / temperature) / total, 5 * 0.5 / std::sqrt(double{kDraws}));
  }
}

TEST(Sample, IsTheSameForTheSameSeedAndDraw) {
  int different = 0;
  for (std::uint64_t draw = 0; draw < 100; ++draw) {
    EXPECT_EQ(sample(kLogits, {.seed = 5}, draw), sample(kLogits, {.seed = 5}, draw));
    different += sample(kLogits, {.seed = 5}, draw) != sample(kLogits, {.seed = 6}, draw);
  }
  EXPECT_GT(different, 30);
}

}  // namespace
}  // namespace tessera::train
