// A search that is stopped from outside, wherever it is.
#include <gtest/gtest.h>

#include <atomic>
#include <optional>

#include "plan/plan_helper.hpp"
#include "search/rank.hpp"
#include "search/search.hpp"

namespace tessera::search {
namespace {

// Stops the search at its n-th look at the clock.
class StoppingClock final : public Clock {
 public:
  StoppingClock(Watch& watch, std::int64_t at) : watch_(watch), at_(at) {}
  Seconds now() const override {
    if (++looks_ >= at_) watch_.stop = true;
    return Seconds(0);
  }
  void sleep(Seconds) override {}
  std::int64_t looks() const { return looks_; }

 private:
  Watch& watch_;
  const std::int64_t at_;
  mutable std::atomic<std::int64_t> looks_ = 0;
};

class StoppedSearch : public testing::TestWithParam<bool> {
 protected:
  model::JobSpec job() const {
    return GetParam() ? plan::job_of({.layers = 6, .global_batch = 16, .precision = "bf16"})
                      : plan::job_of({.layers = 6, .global_batch = 16});
  }
  cluster::ClusterSpec cluster() const { return GetParam() ? plan::gpu_cluster(1, 4, "a100-40") : plan::cpu_cluster(2); }
  // Nothing when it was stopped before it had a plan. `looks`: how often it has looked at the clock.
  std::optional<SearchResult> stopped_at(std::int64_t at, std::int64_t* looks = nullptr) const {
    Watch watch;
    const StoppingClock clock(watch, at);
    std::optional<SearchResult> result;
    try {
      result = search(job(), cluster(), {}, {.top = 5, .vendors = {}, .front = true, .seconds = 1e6, .clock = &clock, .watch = &watch});
      EXPECT_DOUBLE_EQ(watch.best.load().value, result->best.predicted->step.value);
      EXPECT_GT(watch.considered, 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::interrupted) << error.what();
    }
    if (looks != nullptr) *looks = clock.looks();
    return result;
  }
};

TEST_P(StoppedSearch, GivesTheBestSoFarOrSaysThatThereIsNone) {
  constexpr std::int64_t kNever = std::int64_t{1} << 60;
  std::int64_t looks = 0;
  const SearchResult whole = *stopped_at(kNever, &looks);
  EXPECT_FALSE(stopped_at(1));
  int plans = 0;
  for (std::int64_t at = 1; at < looks; at = at * 3 / 2 + 1) {
    const std::optional<SearchResult> result = stopped_at(at);
    if (!result) continue;
    ++plans;
    EXPECT_NO_THROW(check(result->best, job(), cluster()));
    EXPECT_GE(result->best.predicted->step, whole.best.predicted->step * (1 - 1e-3));
    EXPECT_LE(result->bound, whole.best.predicted->step.value);
  }
  EXPECT_GT(plans, 0);
}

INSTANTIATE_TEST_SUITE_P(Search, StoppedSearch, testing::Bool(),
                         [](const auto& info) { return info.param ? "Accelerators" : "CpuWorkers"; });

TEST(StoppedRanking, SimulatesTheBestPlanAlone) {
  const auto job = plan::preset_job("llama-2-7b", 64);
  const auto cluster = plan::gpu_cluster(2, 8, "a100-40");
  SearchResult result = search(job, cluster, {});
  const plan::Plan best = result.best;
  const std::atomic<bool> stop = true;
  const Seconds step = rank_by_simulation(result, job.model, job.train, cluster, {}, &stop);
  EXPECT_EQ(to_json(result.best), to_json(best));
  EXPECT_EQ(step, sim::simulate(best, job.model, job.train, cluster, {}).result.step);
}

}  // namespace
}  // namespace tessera::search
