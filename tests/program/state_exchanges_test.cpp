#include "program/state_exchanges.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "base/error.hpp"

namespace tessera::program {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> described(const plan::Strategy& strategy) {
  std::vector<std::string> out;
  for (const StateExchange& one : state_exchanges({.plain = 1000, .experts = 0, .tied = 0}, strategy, {}))
    out.push_back(text(static_cast<int>(one.moment), " ", one.operation, " of ", one.bytes, " over ", one.ranks, " by ", one.stride));
  return out;
}

TEST(StateExchanges, GradientsAreSummedOnceAStep) { EXPECT_THAT(described({.dp = 8}), ElementsAre("4 all_reduce of 2000 over 8 by 1")); }

TEST(StateExchanges, ZeroOneGathersTheWeightsThatOthersHaveStepped) {
  EXPECT_THAT(described({.dp = 8, .tp = 2, .zero = 1}),
              ElementsAre("1 all_gather of 2000 over 8 by 2", "4 reduce_scatter of 2000 over 8 by 2"));
}

TEST(StateExchanges, ZeroThreeGathersBeforeEveryPass) {
  EXPECT_THAT(described({.dp = 8, .zero = 3}),
              ElementsAre("0 all_gather of 2000 over 8 by 1", "2 all_gather of 2000 over 8 by 1", "3 reduce_scatter of 2000 over 8 by 1"));
}

TEST(StateExchanges, GroupsOfAShardedStateSumTheirSharesOnceAStep) {
  plan::Strategy strategy{.dp = 8, .zero = 2};
  strategy.shards = 4;
  EXPECT_THAT(described(strategy),
              ElementsAre("1 all_gather of 2000 over 4 by 1", "3 reduce_scatter of 2000 over 4 by 1", "4 all_reduce of 500 over 2 by 4"));
}

TEST(StateExchanges, AReplicaAloneExchangesNothing) { EXPECT_THAT(described({.tp = 8, .zero = 3}), IsEmpty()); }

// Whatever cuts the state, gradients of a parameter reach all ranks that hold it.
RC_GTEST_PROP(StateExchanges, GradientsOfAllCopiesMeet, ()) {
  plan::Strategy strategy{.dp = 1 << *rc::gen::inRange(0, 5), .tp = 1 << *rc::gen::inRange(0, 3), .zero = *rc::gen::inRange(0, 4)};
  strategy.cp = 1 << *rc::gen::inRange(0, 2);
  while (strategy.copies() % (2 * strategy.ep) == 0 && *rc::gen::arbitrary<bool>()) strategy.ep *= 2;
  if (strategy.zero > 0 && strategy.copies() > 1 && *rc::gen::arbitrary<bool>()) strategy.shards = strategy.copies() / 2;
  const bool experts = *rc::gen::arbitrary<bool>();
  int met = 1;
  for (const StateExchange& one : state_exchanges({experts ? 0.0 : 64.0, experts ? 64.0 : 0.0, 0}, strategy, {}))
    if (std::string(one.operation) != "all_gather") met *= one.ranks;
  RC_ASSERT(met == (experts ? strategy.expert_copies() : strategy.copies()));
}

}  // namespace
}  // namespace tessera::program
