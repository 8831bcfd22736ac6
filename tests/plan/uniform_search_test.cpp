// The search of uniform plans against pricing every combination one by one.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <limits>

#include "plan/uniform_search.hpp"

namespace tessera::plan {
namespace {

UniformProblem small_problem(int layers, int heads, int nodes, int per_node, std::int64_t batch, double memory) {
  UniformProblem problem;
  problem.model.layers = layers;
  problem.model.hidden = 128 * heads;
  problem.model.heads = problem.model.kv_heads = heads;
  problem.model.head_dim = 128;
  problem.model.ffn = 512 * heads;
  problem.model.vocab = 32000;
  problem.model.seq = 2048;
  problem.group.name = "a100";
  problem.group.device = cluster::known_device("a100-80");
  problem.group.nodes = nodes;
  problem.group.devices_per_node = per_node;
  problem.group.inside = cluster::known_link("nvlink3");
  problem.group.network = cluster::known_link("rdma-200g");
  problem.calibration = profile::calibration_for("a100-80");
  problem.global_batch = batch;
  problem.memory = memory;
  problem.threads = 1;
  return problem;
}

struct Best {
  double step = std::numeric_limits<double>::infinity();
  double memory = std::numeric_limits<double>::infinity();
};

// Every combination with even stages, by the public price alone.
Best enumerate(const UniformProblem& problem) {
  const int devices = problem.group.nodes * problem.group.devices_per_node;
  Best best;
  UniformPlan plan;
  plan.global_batch = problem.global_batch;
  const auto consider = [&] {
    double memory = 0;
    for (int stage = 0; stage < plan.pp; ++stage) memory = std::max(memory, memory_of(plan, problem.model, problem.calibration, stage).total());
    best.memory = std::min(best.memory, memory);
    if (memory <= problem.memory) best.step = std::min(best.step, price(plan, problem.model, problem.group, problem.calibration).step);
  };
  for (plan.tp = 1; plan.tp <= problem.group.devices_per_node; ++plan.tp)
    for (plan.cp = 1; plan.tp * plan.cp <= devices; ++plan.cp)
      for (plan.pp = 1; plan.tp * plan.cp * plan.pp <= devices; ++plan.pp)
        for (plan.micro_batch = 1; plan.micro_batch <= 16; ++plan.micro_batch) {
          if (problem.model.heads % plan.tp != 0 || devices % (plan.tp * plan.cp * plan.pp) != 0 || plan.pp > problem.model.layers) continue;
          if (problem.model.seq % (2 * plan.cp) != 0) continue;
          plan.dp = devices / (plan.tp * plan.cp * plan.pp);
          if (problem.global_batch % (plan.dp * plan.micro_batch) != 0) continue;
          plan.sequence_parallel = plan.tp > 1;
          const int most_zero = plan.dp * plan.cp == 1 ? 0 : plan.pp > 1 ? 1 : 3;
          for (plan.zero = 0; plan.zero <= most_zero; ++plan.zero)
            for (const Again again : {Again::nothing, Again::layer}) {
              plan.again = again;
              plan.chunks = 1;
              plan.schedule = Schedule::one_f_one_b;
              consider();
            }
        }
  return best;
}

RC_GTEST_PROP(UniformSearch, IsNeverSlowerThanAnyPlanWithEvenStages, ()) {
  const auto problem = small_problem(*rc::gen::inRange(1, 9), *rc::gen::element(2, 4, 6, 8), *rc::gen::element(1, 2), *rc::gen::element(1, 2, 4),
                                     *rc::gen::element(4, 8, 12, 16), *rc::gen::element(2e9, 4e9, 8e9, 80e9));
  const Best best = enumerate(problem);
  RC_PRE(best.memory < std::numeric_limits<double>::infinity());
  const UniformSearchResult found = search(problem);
  RC_ASSERT(found.smallest.memory <= best.memory * (1 + 1e-9));
  if (best.step < std::numeric_limits<double>::infinity()) {
    RC_ASSERT(!found.families.empty());
    RC_ASSERT(found.families.front().price.step <= best.step * (1 + 2e-6));
  }
  // What is found costs what the public price says.
  for (const UniformCandidate& candidate : found.families) {
    RC_ASSERT(std::abs(price(candidate.plan, problem.model, problem.group, problem.calibration).step / candidate.price.step - 1) < 1e-9);
    RC_ASSERT(candidate.memory <= problem.memory);
  }
}

TEST(UniformSearch, FindsTheSameWithAnyNumberOfThreads) {
  UniformProblem problem = small_problem(8, 8, 2, 8, 64, 20e9);
  const UniformSearchResult one = search(problem);
  problem.threads = 5;
  const UniformSearchResult five = search(problem);
  ASSERT_EQ(one.families.size(), five.families.size());
  EXPECT_EQ(one.considered, five.considered);
  for (std::size_t i = 0; i < one.families.size(); ++i) {
    EXPECT_EQ(one.families[i].price.step, five.families[i].price.step);
    EXPECT_EQ(one.families[i].memory, five.families[i].memory);
  }
}

TEST(UniformSearch, FrontierTradesTimeForMemory) {
  const UniformSearchResult found = search(small_problem(8, 8, 2, 8, 64, 80e9));
  ASSERT_GT(found.frontier.size(), 1U);
  for (std::size_t i = 1; i < found.frontier.size(); ++i) {
    EXPECT_GE(found.frontier[i].price.step, found.frontier[i - 1].price.step * (1 - 1e-6));
    EXPECT_LT(found.frontier[i].memory, found.frontier[i - 1].memory);
  }
  EXPECT_EQ(found.frontier.front().price.step, found.families.front().price.step);
}

TEST(UniformSearch, WithTooLittleMemorySaysWhatIsNeeded) {
  const UniformSearchResult found = search(small_problem(8, 8, 1, 4, 16, 1e6));
  EXPECT_TRUE(found.families.empty());
  EXPECT_GT(found.smallest.memory, 1e6);
}

TEST(UniformSearch, ABatchThatNothingDividesIsRefused) {
  const auto problem = small_problem(2, 2, 1, 7, 3, 80e9);
  EXPECT_THROW(search(problem), Error);
}

}  // namespace
}  // namespace tessera::plan
