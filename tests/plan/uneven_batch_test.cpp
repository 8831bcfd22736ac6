// Samples of different lengths, dealt to groups of ranks.
#include "plan/uneven_batch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <cmath>
#include <functional>
#include <numeric>
#include <set>

#include "base/expect_error.hpp"
#include "base/random.hpp"

namespace tessera::plan {
namespace {

using Sizes = std::vector<std::int64_t>;

// Exchanges cost as much as computing in groups of two, and more in wider ones.
Lengths prices(int widest) {
  Lengths out{{}, 1e-3, 1e-5, 1e-9};
  for (int degree = 1; degree <= widest; degree *= 2) out.groups.push_back({degree, degree == 1 ? 0 : 5e-6 * std::log2(degree) + 5e-6});
  return out;
}

Sizes lognormal(std::size_t count, std::int64_t median, std::int64_t longest, std::uint64_t seed) {
  Random random(seed);
  Sizes out;
  for (std::size_t i = 0; i < count; ++i) {
    double normal = -6;
    for (int k = 0; k < 12; ++k) normal += random.uniform();
    out.push_back(std::clamp<std::int64_t>(static_cast<std::int64_t>(static_cast<double>(median) * std::exp(1.1 * normal)), 1, longest));
  }
  return out;
}

// The pass's seconds, and their end on every rank, as the header says them.
std::vector<double> ends_of(const UnevenBatch& batch, const Sizes& samples, const Lengths& lengths, int ranks) {
  std::vector<double> through(static_cast<std::size_t>(ranks), 0);
  for (const SharedPass& pass : batch.passes) {
    double exchange = 0, tokens = 0, pairs = 0, begin = 0;
    for (const Lengths::Group& group : lengths.groups)
      if (group.degree == pass.degree) exchange = group.exchange;
    for (const std::int64_t sample : pass.samples) {
      const auto length = static_cast<double>(samples[static_cast<std::size_t>(sample)]);
      tokens += length;
      pairs += length * length / 2;
    }
    for (int rank = pass.first; rank < pass.first + pass.degree; ++rank) begin = std::max(begin, through[static_cast<std::size_t>(rank)]);
    const double end = begin + lengths.pass + ((lengths.token + exchange) * tokens + lengths.pair * pairs) / pass.degree;
    for (int rank = pass.first; rank < pass.first + pass.degree; ++rank) through[static_cast<std::size_t>(rank)] = end;
  }
  return through;
}
double seconds_of(const UnevenBatch& batch, const Sizes& samples, const Lengths& lengths, int ranks) {
  return std::ranges::max(ends_of(batch, samples, lengths, ranks));
}

RC_GTEST_PROP(UnevenBatch, DealsEachSampleOnceToAlignedGroupsThatHoldIt, ()) {
  const int widest = *rc::gen::element(1, 2, 4, 8);
  const int ranks = widest * *rc::gen::inRange(1, 4);
  const std::int64_t tokens = 2 * *rc::gen::inRange<std::int64_t>(8, 600);
  const Sizes samples = *rc::gen::container<Sizes>(rc::gen::inRange<std::int64_t>(1, tokens * widest + 1));
  const Lengths lengths = prices(widest);
  const UnevenBatch batch = deal(samples, lengths, ranks, tokens);
  std::multiset<std::int64_t> seen;
  for (const SharedPass& pass : batch.passes) {
    RC_ASSERT(!pass.samples.empty());
    RC_ASSERT(pass.first % pass.degree == 0 && pass.first + pass.degree <= ranks);
    std::int64_t row = 0;
    for (const std::int64_t sample : pass.samples) row += samples[static_cast<std::size_t>(sample)];
    RC_ASSERT(padded_row(row, pass.degree) <= tokens * pass.degree);
    seen.insert(pass.samples.begin(), pass.samples.end());
  }
  std::multiset<std::int64_t> all;
  for (std::int64_t i = 0; i < std::ssize(samples); ++i) all.insert(i);
  RC_ASSERT(seen == all);
  const double seconds = seconds_of(batch, samples, lengths, ranks);
  RC_ASSERT(std::abs(batch.seconds - seconds) <= 1e-9 * seconds);
  RC_ASSERT(batch.bound <= batch.seconds * (1 + 1e-9));
  double worked = 0;
  for (const double end : ends_of(batch, samples, lengths, ranks)) worked += end / ranks;
  RC_ASSERT(std::abs(batch.idle * seconds - (seconds - worked)) <= 1e-9 * seconds);
  RC_ASSERT(std::abs(least_seconds(samples, lengths, ranks, tokens) - batch.bound) <= 1e-12 * batch.bound);
}

TEST(UnevenBatch, IsTheSameEveryTime) {
  const Sizes samples = lognormal(300, 128, 4096, 1);
  const UnevenBatch one = deal(samples, prices(4), 16, 1024);
  const UnevenBatch other = deal(samples, prices(4), 16, 1024);
  ASSERT_EQ(one.passes.size(), other.passes.size());
  for (std::size_t i = 0; i < one.passes.size(); ++i) {
    EXPECT_EQ(one.passes[i].first, other.passes[i].first);
    EXPECT_EQ(one.passes[i].samples, other.passes[i].samples);
  }
}

TEST(UnevenBatch, CutsLongSamplesAmongManyRanksAndKeepsShortOnesOnOne) {
  Sizes samples(60, 100);
  samples[17] = 4000;
  samples[30] = 1500;
  for (const SharedPass& pass : deal(samples, prices(4), 8, 1024).passes) {
    std::int64_t longest = 0;
    for (const std::int64_t sample : pass.samples) longest = std::max(longest, samples[static_cast<std::size_t>(sample)]);
    EXPECT_EQ(pass.degree, longest == 4000 ? 4 : longest == 1500 ? 2 : 1);
  }
}

TEST(UnevenBatch, WidensGroupsWhereOneRankWouldWorkLongest) {
  // One rank would take four times as long as four do, and there is nothing else to do.
  const UnevenBatch batch = deal(Sizes{4000}, prices(4), 4, 4096);
  ASSERT_EQ(batch.passes.size(), 1u);
  EXPECT_EQ(batch.passes[0].degree, 4);
}

// All ways to deal few samples to groups, one sample a pass.
double best_of_all(const Sizes& samples, const Lengths& lengths, int ranks) {
  double best = 1e9;
  std::vector<SharedPass> ways;
  for (const Lengths::Group& group : lengths.groups)
    for (int first = 0; first < ranks; first += group.degree) ways.push_back({first, group.degree, {}});
  UnevenBatch batch;
  const std::function<void(std::size_t)> next = [&](std::size_t sample) {
    if (sample == samples.size()) {
      UnevenBatch ordered = batch;
      std::stable_sort(ordered.passes.begin(), ordered.passes.end(), [](const auto& a, const auto& b) { return a.degree > b.degree; });
      best = std::min(best, seconds_of(ordered, samples, lengths, ranks));
      return;
    }
    for (const SharedPass& way : ways) {
      batch.passes.push_back(way);
      batch.passes.back().samples = {static_cast<std::int64_t>(sample)};
      next(sample + 1);
      batch.passes.pop_back();
    }
  };
  next(0);
  return best;
}

TEST(UnevenBatch, IsNearTheBestOfAllLayoutsOfFewSamples) {
  Random random(5);
  Lengths lengths = prices(4);
  lengths.pass = 0;
  double worst = 1;
  for (int turn = 0; turn < 40; ++turn) {
    Sizes samples;
    for (int i = 0; i < 5; ++i) samples.push_back(1 + static_cast<std::int64_t>(random.below(turn % 2 == 0 ? 1000 : 4000)));
    worst = std::max(worst, deal(samples, lengths, 4, 4096).seconds / best_of_all(samples, lengths, 4));
  }
  EXPECT_LT(worst, 1.25);
}

TEST(UnevenBatch, OfManySamplesComesCloseToItsBound) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const Sizes samples = lognormal(512, 128, 4096, seed);
    const UnevenBatch batch = deal(samples, prices(4), 16, 1024);
    EXPECT_LT(batch.seconds, 1.15 * batch.bound);
    Lengths fixed = prices(4);
    fixed.groups.erase(fixed.groups.begin(), fixed.groups.end() - 1);
    EXPECT_GT(deal(samples, fixed, 16, 1024).seconds, 1.4 * batch.seconds);
  }
}

TEST(UnevenBatch, RefusesWhatTheWidestGroupCannotHold) {
  const Error error = tessera::testing::error_of([] { deal(Sizes{10, 4100}, prices(4), 4, 1024); });
  EXPECT_EQ(error.code(), ErrorCode::resource_exhausted);
  EXPECT_STREQ(error.message().c_str(), "a sample of 4100 tokens is longer than what 4 ranks hold at once");
  EXPECT_EQ(error.expected(), "at most 4096 tokens");
}

}  // namespace
}  // namespace tessera::plan
