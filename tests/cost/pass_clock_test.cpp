#include "cost/pass_clock.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace tessera::cost {
namespace {

using program::BlockPass;

constexpr double kSlowdown = 0.25;
constexpr double kLost = kSlowdown / (1 + kSlowdown);  // of the time in which computing runs beside an exchange

TimedExchange inside(double seconds) { return {.seconds = seconds}; }
TimedExchange leaving(double seconds) { return {.seconds = seconds, .link = LinkStream::leaving}; }

TEST(PassClock, WaitsForAnExchangeBetweenTwoOperators) {
  const BlockPass pass{.computing = {{0}, {1}}, .exchanges = {{0, Bytes(1), 0, 1}}};
  const PlayedPass played = play(pass, {2, 3}, {inside(4)}, kSlowdown);
  EXPECT_DOUBLE_EQ(played.seconds, 9);
  EXPECT_DOUBLE_EQ(played.exposed[0], 4);
  EXPECT_DOUBLE_EQ(played.busy[0], 4);
  EXPECT_DOUBLE_EQ(played.busy[1], 0);
}

TEST(PassClock, ComputingBesideAnExchangeIsSlower) {
  const BlockPass pass{.computing = {{0}, {1}, {2}}, .exchanges = {{0, Bytes(1), 0, 2}}};
  EXPECT_DOUBLE_EQ(play(pass, {1, 5, 1}, {inside(2)}, kSlowdown).seconds, 7 + 2 * kLost);
  EXPECT_DOUBLE_EQ(play(pass, {1, 1, 1}, {inside(2)}, kSlowdown).seconds, 4);
}

// The first piece of a gather and the last of a scatter have no piece of the product to run beside.
TEST(PassClock, PiecesExposeOneOfThem) {
  const BlockPass gathered{.computing = {{0, 4}, {0, 4}, {0, 4}, {0, 4}},
                           .exchanges = {{0, Bytes(1), -1, 0}, {0, Bytes(1), -1, 1}, {0, Bytes(1), -1, 2}, {0, Bytes(1), -1, 3}}};
  const BlockPass scattered{.computing = gathered.computing,
                            .exchanges = {{0, Bytes(1), 0, 4}, {0, Bytes(1), 1, 4}, {0, Bytes(1), 2, 4}, {0, Bytes(1), 3, 4}}};
  const std::vector<TimedExchange> pieces(4, inside(1));
  EXPECT_NEAR(play(gathered, {8}, pieces, kSlowdown).seconds, 8 + 1 + 3 * kLost, 1e-12);
  EXPECT_NEAR(play(scattered, {8}, pieces, kSlowdown).seconds, 8 + 1 + 3 * kLost, 1e-12);
}

TEST(PassClock, ExchangesQueueOnOneLinkAndNotOnTwo) {
  const BlockPass pass{.computing = {{0}, {1}}, .exchanges = {{0, Bytes(1), 0, 1}, {1, Bytes(1), 0, 1}}};
  EXPECT_DOUBLE_EQ(play(pass, {1, 1}, {inside(3), inside(2)}, kSlowdown).seconds, 7);
  EXPECT_DOUBLE_EQ(play(pass, {1, 1}, {inside(3), leaving(2)}, kSlowdown).seconds, 5);
}

RC_GTEST_PROP(PassClock, AddsWhatIsExposedAndNothingIsFasterThanItsLinks, ()) {
  const int steps = *rc::gen::inRange(1, 8);
  const auto seconds = [] { return *rc::gen::inRange(0, 50) / 7.0; };
  BlockPass pass;
  std::vector<double> computing;
  double computed = 0;
  for (int step = 0; step < steps; ++step) {
    pass.computing.push_back({step, *rc::gen::inRange(1, 4)});
    for (int piece = 1; piece < pass.computing.back().pieces; ++piece) pass.computing.push_back(pass.computing.back());
    computing.push_back(seconds());
    computed += computing.back();
  }
  const int end = static_cast<int>(pass.computing.size());
  std::vector<TimedExchange> exchanges;
  int after = -1;
  while (after < end - 1 && *rc::gen::inRange(0, 4) > 0) {
    after = *rc::gen::inRange(after, end);
    if (after == end) break;
    pass.exchanges.push_back({static_cast<int>(exchanges.size()), Bytes(1), after, *rc::gen::inRange(after + 1, end + 1)});
    exchanges.push_back({seconds(), *rc::gen::element(LinkStream::inside, LinkStream::leaving),
                         *rc::gen::element(model::Exchange::Axis::tensor, model::Exchange::Axis::expert)});
  }
  const PlayedPass played = play(pass, computing, exchanges, kSlowdown);
  double exposed = 0;
  double exchanged = 0;
  for (const double each : played.exposed) exposed += each;
  for (const TimedExchange& each : exchanges) exchanged += each.seconds;
  RC_ASSERT(std::abs(played.seconds - computed - exposed) < 1e-9);
  RC_ASSERT(played.seconds <= computed + exchanged + 1e-9);
  for (const double busy : played.busy) RC_ASSERT(played.seconds >= busy - 1e-9);
}

// The closed form of an exchange that nothing in the pass waits for.
RC_GTEST_PROP(PassClock, AnExchangeBesideAPassTakesWhatTheClockPlays, ()) {
  const double computing = *rc::gen::inRange(0, 100) / 7.0;
  const double exchange = *rc::gen::inRange(1, 100) / 7.0;
  const BlockPass pass{.computing = {{0}}, .exchanges = {{0, Bytes(1), -1, 1}}};
  const double played = play(pass, {computing}, {inside(exchange)}, kSlowdown).seconds;
  RC_ASSERT(std::abs(played - computing - added_beside(exchange, computing, kSlowdown)) < 1e-12);
}

}  // namespace
}  // namespace tessera::cost
