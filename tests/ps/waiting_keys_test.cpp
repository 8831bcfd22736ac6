#include "ps/waiting_keys.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace tessera::ps {
namespace {

TEST(WaitingKeys, AreAdmittedWhenTheyWereSeenOftenEnough) {
  WaitingKeys waiting(1000);
  for (const unsigned enough : {2u, 3u, 15u})
    for (std::uint64_t key = 0; key < 20; ++key) {
      for (unsigned seen = 1; seen < enough; ++seen) EXPECT_FALSE(waiting.admit(key, 1, enough));
      EXPECT_TRUE(waiting.admit(key, 1, enough));
    }
  EXPECT_TRUE(waiting.admit(7, 5, 5));
  EXPECT_FALSE(waiting.admit(7, 4, 5));
  EXPECT_TRUE(waiting.admit(7, 1, 5));
  // None of them is waited for any more.
  EXPECT_TRUE(std::ranges::all_of(waiting.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST(WaitingKeys, TakeLittleMemoryAndAreSeldomTakenForOneAnother) {
  constexpr std::uint64_t kKeys = 300'000;
  WaitingKeys waiting(kKeys);
  EXPECT_LE(waiting.bytes().size(), kKeys * 27 / 10);
  std::uint64_t early = 0, late = 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) early += waiting.admit(key, 1, 2) ? 1 : 0;
  for (std::uint64_t key = 0; key < kKeys; ++key) late += waiting.admit(key, 1, 2) ? 0 : 1;
  EXPECT_LT(early, kKeys / 100);
  EXPECT_LT(late, kKeys * 3 / 100);  // forgotten in a full line, or admitted with another one
}

TEST(WaitingKeys, ForgetThoseThatWereSeenLeastWhereThereAreTooMany) {
  WaitingKeys waiting(1000);
  for (std::uint64_t key = 0; key < 500; ++key)
    for (int seen = 0; seen < 3; ++seen) waiting.admit(key, 1, 9);
  for (std::uint64_t key = 1000; key < 100'000; ++key) waiting.admit(key, 1, 9);
  int kept = 0;
  for (std::uint64_t key = 0; key < 500; ++key) kept += waiting.admit(key, 6, 9) ? 1 : 0;
  EXPECT_GT(kept, 480);
}

TEST(WaitingKeys, KeysThatWereNotSeenBetweenTwoTimesAreForgotten) {
  WaitingKeys waiting(100);
  waiting.admit(1, 1, 3);
  waiting.admit(2, 1, 3);
  waiting.forget_old();
  waiting.admit(1, 1, 3);
  waiting.forget_old();
  EXPECT_TRUE(waiting.admit(1, 1, 3));
  EXPECT_FALSE(waiting.admit(2, 2, 3));
}

TEST(WaitingKeys, WhatTwoKnowIsKnownToOneAndACopyIsTheSame) {
  WaitingKeys one(2000), other(2000), both(2000), copy(2000);
  for (std::uint64_t key = 0; key < 300; ++key) one.admit(key, 2, 9);
  for (std::uint64_t key = 0; key < 600; ++key) other.admit(key, 1 + key % 3, 9);
  // Lines with gaps.
  for (std::uint64_t key = 0; key < 100; ++key) one.admit(key, 9, 9);
  for (std::uint64_t key = 100; key < 200; ++key) one.admit(key, 7, 9);
  copy.add(0, one.bytes());
  EXPECT_TRUE(std::ranges::equal(copy.bytes(), one.bytes()));
  both.add(0, one.bytes());
  for (std::size_t line = 0; line < other.bytes().size() / WaitingKeys::kLineBytes; ++line)
    both.add(line, other.bytes().subspan(line * WaitingKeys::kLineBytes, WaitingKeys::kLineBytes));
  int right = 0;
  for (std::uint64_t key = 200; key < 300; ++key)
    right += both.admit(key, static_cast<unsigned>(9 - std::max<std::uint64_t>(2, 1 + key % 3)), 9) ? 1 : 0;
  for (std::uint64_t key = 300; key < 600; ++key) right += both.admit(key, static_cast<unsigned>(8 - key % 3), 9) ? 1 : 0;
  EXPECT_GE(right, 395);
  both.add(1 << 20, other.bytes());  // lines that it has not
}

}  // namespace
}  // namespace tessera::ps
