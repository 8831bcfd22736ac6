#include "base/units.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(Units, PrintBytesInBinaryUnits) {
  EXPECT_EQ(to_text(Bytes(0)), "0 B");
  EXPECT_EQ(to_text(Bytes(1023)), "1023 B");
  EXPECT_EQ(to_text(Bytes(1536)), "1.50 KiB");
  EXPECT_EQ(to_text(Bytes(3LL << 29)), "1.50 GiB");
  EXPECT_EQ(to_text(Bytes(80LL << 30)), "80.0 GiB");
  EXPECT_EQ(to_text(Bytes(640LL << 30)), "640 GiB");
}

TEST(Units, PrintTimesFromMicrosecondsToHours) {
  EXPECT_EQ(to_text(Seconds(5.5e-6)), "5.5 us");
  EXPECT_EQ(to_text(Seconds(0.0123)), "12.30 ms");
  EXPECT_EQ(to_text(Seconds(0.25)), "250.0 ms");
  EXPECT_EQ(to_text(Seconds(1.5)), "1.50 s");
  EXPECT_EQ(to_text(Seconds(125)), "2m 05s");
  EXPECT_EQ(to_text(Seconds(7260)), "2h 01m");
}

TEST(Units, PrintRatesInDecimalUnits) {
  EXPECT_EQ(to_text(FlopsPerSecond(989e12)), "989 TFLOP/s");
  EXPECT_EQ(to_text(BytesPerSecond(1.17e9)), "1.17 GB/s");
  EXPECT_EQ(to_text(Flops(2.5e15)), "2.50 PFLOP");
  EXPECT_EQ(to_text(FlopsPerSecond(12)), "12 FLOP/s");
}

TEST(Units, PrintCountsAsPeopleSayThem) {
  EXPECT_EQ(count_text(8.03e9), "8.03 B");
  EXPECT_EQ(count_text(512), "512");
  EXPECT_EQ(count_text(27.3e6), "27.3 M");
}

TEST(Units, CombineWhereItMakesSense) {
  EXPECT_DOUBLE_EQ((Flops(6e12) / FlopsPerSecond(2e12)).value, 3.0);
  EXPECT_DOUBLE_EQ((Bytes(1000) / BytesPerSecond(500)).value, 2.0);
  EXPECT_DOUBLE_EQ(Bytes(3) / Bytes(2), 1.5);
  EXPECT_EQ((Bytes(3) + 2L * Bytes(4) - Bytes(1)).value, 10);
  EXPECT_LT(Seconds(1), Seconds(2));
}

}  // namespace
}  // namespace tessera
