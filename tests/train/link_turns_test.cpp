// When a run measures its links again.
#include "train/link_turns.hpp"

#include <gmock/gmock.h>

namespace tessera::train {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::vector<SpeedChange> kExchange = {{.warns = true, .words = "an exchange", .between_hosts = true}};

// After how many of the steps `from` to `to` they are due, where each measurement takes the time of `steps` of them.
std::vector<std::int64_t> due_at(LinkTurns& links, std::int64_t from, std::int64_t to, double steps, bool changed = false) {
  std::vector<std::int64_t> out;
  for (std::int64_t made = from; made <= to; ++made) {
    if (!links.due({}, made)) continue;
    out.push_back(made);
    links.measured(made, steps, changed);
  }
  return out;
}

TEST(LinkTurns, LinksAreMeasuredWhenAnExchangeBetweenHostsIsNamed) {
  LinkTurns links;
  EXPECT_FALSE(links.due({}, 10));
  EXPECT_FALSE(links.due({{.warns = true, .words = "a rank", .rank = 1, .ratio = 2}, {.warns = true, .words = "within a host"}}, 10));
  EXPECT_TRUE(links.due(kExchange, 11));
  links.measured(11, 0.1, false);
  EXPECT_THAT(due_at(links, 12, 1000, 0.1), IsEmpty());
}

TEST(LinkTurns, WhatIsNamedTooEarlyIsRemembered) {
  LinkTurns links;
  EXPECT_TRUE(links.due(kExchange, 100));
  links.measured(100, 0.1, false);
  EXPECT_FALSE(links.due(kExchange, 101));
  EXPECT_THAT(due_at(links, 102, 1000, 0.1), ElementsAre(150));
}

TEST(LinkTurns, MeasuringTakesAShareOfTheTime) {
  LinkTurns links;
  EXPECT_TRUE(links.due(kExchange, 100));
  links.measured(100, 4, false);
  EXPECT_FALSE(links.due(kExchange, 101));
  EXPECT_THAT(due_at(links, 102, 1000, 4), ElementsAre(300));
}

TEST(LinkTurns, ThatALinkHasRecoveredIsSeenUnderAPlanThatDoesNotUseIt) {
  LinkTurns links;
  EXPECT_TRUE(links.due(kExchange, 100));
  links.measured(100, 0.1, true);
  EXPECT_THAT(due_at(links, 101, 750, 0.1), ElementsAre(300, 500, 700));
}

}  // namespace
}  // namespace tessera::train
