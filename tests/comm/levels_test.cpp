// Which groups stand on two levels.
#include "comm/levels.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::comm {
namespace {

using ::testing::ElementsAre;

TEST(Levels, AreHostsWithEquallyManyRanksInTheOrderOfTheGroup) {
  const auto levels = levels_of({7, 3, 3, 7, 7, 3}, 4);
  ASSERT_TRUE(levels);
  EXPECT_THAT(levels->ranks, ElementsAre(ElementsAre(0, 3, 4), ElementsAre(1, 2, 5)));
  EXPECT_EQ(levels->host, 0U);
  EXPECT_EQ(levels->place, 2U);
  const auto other = levels_of({7, 3, 3, 7, 7, 3}, 2);
  EXPECT_EQ(other->ranks, levels->ranks);
  EXPECT_EQ(other->host, 1U);
  EXPECT_EQ(other->place, 1U);
}

TEST(Levels, AreNoneOfOneHostOfSingleRanksOfUnequalHostsAndOfUnknownOnes) {
  EXPECT_FALSE(levels_of({5, 5, 5, 5}, 0));
  EXPECT_FALSE(levels_of({0, 1, 2, 3}, 0));
  EXPECT_FALSE(levels_of({0, 0, 1}, 0));
  EXPECT_FALSE(levels_of({0, 0, 0, 1, 1}, 0));
  EXPECT_FALSE(levels_of({-1, -1, -1, -1}, 0));
  EXPECT_FALSE(levels_of({0, 0, -1, -1}, 0));
}

}  // namespace
}  // namespace tessera::comm
