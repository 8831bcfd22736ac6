#include "base/hash.hpp"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "base/random.hpp"

namespace tessera {
namespace {

// XXH3's published values for no input. These stand in files: they must never change.
TEST(Hash, EqualsThePublishedValues) {
  EXPECT_EQ(hash64(std::string_view()), 0x2d06800538d394c2ull);
  EXPECT_EQ(hash128_hex(std::string_view()), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, OfBytesAndOfTextIsTheSame) {
  EXPECT_TRUE(rc::check([](const std::string& content) {
    const auto bytes = std::as_bytes(std::span(content.data(), content.size()));
    RC_ASSERT(hash64(bytes, 7) == hash64(content, 7));
    RC_ASSERT(hash128_hex(bytes) == hash128_hex(content));
  }));
}

TEST(Hash, NoticesEachFlippedBit) {
  EXPECT_TRUE(rc::check([](std::string content, std::uint64_t place) {
    RC_PRE(!content.empty());
    const std::string before = hash128_hex(content);
    content[place / 8 % content.size()] ^= static_cast<char>(1 << place % 8);
    RC_ASSERT(hash128_hex(content) != before);
  }));
}

// Computed apart from this code, from the definition of splitmix64.
TEST(Seed, IsTheSameOnEveryMachine) {
  EXPECT_EQ(seed_of(1, 2), 0xe070f0f89d0af642ull);
  EXPECT_EQ(seed_of(1, 2, 3, 4), 0x545e3fddb5a6a6deull);
  EXPECT_EQ(seed_of(0, 0), 0x9690f265aafb4609ull);
}

TEST(Seed, DependsOnEachPartAndTheirOrder) {
  EXPECT_TRUE(rc::check([](std::uint64_t a, std::uint64_t b) {
    RC_PRE(a != b);
    RC_ASSERT(seed_of(a, b) != seed_of(b, a));
    RC_ASSERT(seed_of(a, b) != seed_of(a, b, 1));
    RC_ASSERT(seed_of(a, 0) != seed_of(b, 0));
  }));
}

TEST(Random, IsSplitmix64) {
  Random random(1234567);
  EXPECT_EQ(random.next(), 6457827717110365317ull);
  EXPECT_EQ(random.next(), 3203168211198807973ull);
  EXPECT_EQ(random.next(), 9817491932198370423ull);
}

TEST(Random, StaysBelowItsBound) {
  EXPECT_TRUE(rc::check([](std::uint64_t seed, std::uint64_t bound) {
    RC_PRE(bound > 0u);
    Random random(seed);
    for (int i = 0; i < 20; ++i) RC_ASSERT(random.below(bound) < bound);
    const double value = random.uniform();
    RC_ASSERT(value >= 0.0 && value < 1.0);
  }));
}

TEST(Random, MeetsEachValueAboutEquallyOften) {
  Random random(5);
  int counts[6] = {};
  for (int i = 0; i < 60'000; ++i) ++counts[random.below(6)];
  for (const int count : counts) EXPECT_NEAR(count, 10'000, 500);
}

}  // namespace
}  // namespace tessera
