// Jobs whose samples have lengths of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "cost/cost.hpp"
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

TEST(Search, ShardsTheOptimizersStateWhereSamplesOfDifferentLengthsNeedTheMemory) {
  cluster::ClusterSpec cluster = plan::cpu_cluster(1, 4);
  const auto needed = [&](const char* parallel) {
    const plan::Plan plan = search(job_of(parallel), cluster, {}, {.lengths = lengths()}).best;
    return std::pair(plan.stages.front().runs.front().strategy.zero, std::ranges::max(plan.predicted->memory).value);
  };
  const auto [sharded, less] = needed("{dp: 1, cp: 4, micro_batches: 16, zero: 1}");
  const auto [whole, more] = needed("{dp: 1, cp: 4, micro_batches: 16, zero: 0}");
  EXPECT_EQ(std::pair(whole, sharded), std::pair(0, 1));
  cluster::Device& device = cluster.groups[0].device;
  const double usable = cost::memory_limit(device) / device.memory;
  device.memory = Bytes(static_cast<std::int64_t>(static_cast<double>(less + more) / 2 / usable));
  EXPECT_EQ(needed("{dp: 1, cp: 4, micro_batches: 16}").first, 1);
  EXPECT_EQ(needed("auto").first, 1);
}

TEST(Search, PricesAttentionAsPassesOverPartsOfSamplesSay) {
  const auto job = job_of("{dp: 4, cp: 1, micro_batches: 2}");
  profile::BlockSample whole;
  whole.kind = job.model.repeats.at(1).block.profile_key();
  whole.threads = 4;
  whole.forward = whole.forward_low = whole.forward_high = Seconds(1);
  whole.backward = whole.backward_low = whole.backward_high = Seconds(2);
  profile::Profile profile;
  profile.blocks = {whole};
  const auto attention = [&] {
    const plan::Lengths lengths = search(job, plan::cpu_cluster(1, 4), profile).best.lengths.value();
    return lengths.pair * kLongest * kLongest / 2 / 4;  // of each layer
  };
  EXPECT_NEAR(attention(), 3 * 0.59, 0.01) << "its share of the operations";
  // An eighth of the positions takes an eighth of the time: nothing grows with the square.
  whole.positions = kLongest / 8;
  whole.forward = Seconds(0.125);
  whole.backward = Seconds(0.25);
  profile.blocks.push_back(whole);
  EXPECT_NEAR(attention(), 0, 1e-9);
}

}  // namespace
}  // namespace tessera::search
