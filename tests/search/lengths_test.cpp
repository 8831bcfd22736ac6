// Jobs whose samples have lengths of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "plan/plan.hpp"
#include "plan/plan_helper.hpp"
#include "search/search.hpp"

namespace tessera::search {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::int64_t kLongest = 4096;

model::JobSpec job_of(const std::string& parallel) {
  return model::read_job(
      ConfigNode::parse("model: {arch: llama, hidden: 256, layers: 4, heads: 4, kv_heads: 4, ffn: 768, seq: 4096, vocab: 1024}\n"
                        "data: {source: synthetic, lengths: {kind: lognormal, median: 128}}\ntrain: {global_batch: 16}\nparallel: " +
                            parallel + "\n",
                        "train.yaml"));
}

// Two batches of short samples, with a long one in each.
std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> out;
  for (int i = 0; i < 32; ++i) out.push_back(i % 16 == 5 ? kLongest : 60 + 20 * (i % 16));
  return out;
}

TEST(Search, DealsSamplesOfDifferentLengthsAsWellAsAnyPlanWithGivenDegrees) {
  cluster::ClusterSpec cluster = plan::cpu_cluster(1, 4);
  cluster.groups[0].network.bandwidth = BytesPerSecond(1e9);
  const SearchOptions options{.lengths = lengths()};
  const SearchResult result = search(job_of("auto"), cluster, {}, options);
  check(result.best, job_of("auto"), cluster);
  ASSERT_TRUE(result.best.lengths);
  EXPECT_GT(result.best.lengths->groups.back().degree, 1);
  EXPECT_EQ(result.best.lengths->mean, 456);
  const std::string words = explain(result, job_of("auto").model, cluster);
  EXPECT_THAT(words, HasSubstr("of samples of 456 tokens on average"));
  EXPECT_THAT(words, Not(HasSubstr("utilization")));
  int fixed = 0;
  for (const int cp : {1, 2, 4})
    for (const int micro_batches : {1, 2, 4, 8, 16}) {
      if (16 % (4 / cp * micro_batches) != 0) continue;
      const auto job = job_of(text("{dp: ", 4 / cp, ", cp: ", cp, ", micro_batches: ", micro_batches, "}"));
      EXPECT_LE(result.best.predicted->step.value, search(job, cluster, {}, options).best.predicted->step.value * (1 + 1e-9))
          << "cp " << cp << ", micro_batches " << micro_batches;
      ++fixed;
    }
  EXPECT_GE(fixed, 9);
  // Of samples that are as long as can be, each step takes longer.
  EXPECT_GT(search(job_of("auto"), cluster, {}).best.predicted->step.value, 2 * result.best.predicted->step.value);
}

TEST(Search, PricesSamplesOfOneLengthAsTheSimulatorDoes) {
  const cluster::ClusterSpec cluster = plan::cpu_cluster(1, 4);
  const auto job = job_of("{dp: 4, cp: 1, micro_batches: 2}");
  const double played = search(job, cluster, {}).best.predicted->step.value;
  const double dealt = search(job, cluster, {}, {.lengths = std::vector<std::int64_t>(32, kLongest)}).best.predicted->step.value;
  EXPECT_NEAR(dealt / played, 1, 0.02);
}

}  // namespace
}  // namespace tessera::search
