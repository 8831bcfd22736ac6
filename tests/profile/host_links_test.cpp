#include "profile/host_links.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace tessera::profile {
namespace {

using ::testing::ElementsAre;

CommSample pair_of(int a, int b, double gbit) {
  CommSample out;
  out.operation = "send";
  out.link = pair_link("lab", a, b);
  out.latency = Seconds(1e-4);
  out.bandwidth = BytesPerSecond(gbit * 1.25e8);
  return out;
}

// Four hosts, of which 0 and 1 are joined by a tenth of what joins the others.
Profile one_slow_pair() {
  Profile out;
  for (int a = 0; a < 4; ++a)
    for (int b = a + 1; b < 4; ++b) out.communication.push_back(pair_of(a, b, a == 0 && b == 1 ? 0.2 : 2));
  return out;
}

std::pair<double, double> length_of(const std::vector<int>& ring, const std::function<double(int, int)>& seconds) {
  std::pair<double, double> out = {0, 0};
  for (std::size_t i = 0; i < ring.size(); ++i) {
    const int a = ring[i], b = ring[(i + 1) % ring.size()];
    const double hop = std::max(seconds(a, b), seconds(b, a));
    out = {std::max(out.first, hop), out.second + hop};
  }
  return out;
}

// Of every order, also those that begin elsewhere or go the other way round.
std::pair<double, double> least_of_all(int members, const std::function<double(int, int)>& seconds) {
  std::vector<int> ring(static_cast<std::size_t>(members));
  std::iota(ring.begin(), ring.end(), 0);
  std::pair<double, double> out = length_of(ring, seconds);
  while (std::next_permutation(ring.begin(), ring.end())) out = std::min(out, length_of(ring, seconds));
  return out;
}

TEST(ShortestRing, EqualsEnumeration) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> hops(0.1, 1);
  int reordered = 0;
  for (int members = 1; members <= 8; ++members)
    for (int turn = 0; turn < (members == 8 ? 3 : 20); ++turn) {
      std::vector<double> matrix(64);
      for (double& hop : matrix) hop = hops(random);
      const auto seconds = [&](int a, int b) { return matrix[static_cast<std::size_t>(8 * a + b)]; };
      const std::vector<int> ring = shortest_ring(members, seconds);
      std::vector<int> sorted = ring;
      std::sort(sorted.begin(), sorted.end());
      const auto least = least_of_all(members, seconds);
      const auto given = length_of(sorted, seconds);
      EXPECT_EQ(sorted.size(), static_cast<std::size_t>(members));
      EXPECT_EQ(ring.front(), 0);
      EXPECT_EQ(ring, shortest_ring(members, seconds));
      if (ring == sorted) {
        EXPECT_LE(given.first, 1.1 * least.first);
        continue;
      }
      ++reordered;
      const auto length = length_of(ring, seconds);
      EXPECT_DOUBLE_EQ(length.first, least.first);
      EXPECT_NEAR(length.second, least.second, 1e-12);
    }
  EXPECT_GT(reordered, 20);
}

TEST(ShortestRing, OfManyAvoidsTheSlowLinks) {
  // Hosts of even and of odd number are joined slowly, except by two links.
  const auto seconds = [](int a, int b) {
    if (a % 2 == b % 2) return 1.0;
    const auto [low, high] = std::minmax(a, b);
    return (low == 0 && high == 1) || (low == 10 && high == 11) ? 1.0 : 10.0;
  };
  const std::vector<int> ring = shortest_ring(12, seconds);
  EXPECT_EQ(length_of(ring, seconds).first, 1.0) << ::testing::PrintToString(ring);
}

TEST(ShortestRing, StaysWhereLinksAreAlike) {
  const auto seconds = [](int a, int b) { return 1 + 0.01 * ((3 * a + 5 * b) % 7); };
  EXPECT_THAT(shortest_ring(5, seconds), ElementsAre(0, 1, 2, 3, 4));
  std::vector<int> twelve(12);
  std::iota(twelve.begin(), twelve.end(), 0);
  EXPECT_EQ(shortest_ring(12, seconds), twelve);
}

TEST(HostLinks, AreReadFromAProfilesFile) {
  Profile written = one_slow_pair();
  written.model_fingerprint = "0123456789abcdef";
  written.host = "lab";
  written.process_baseline = Bytes(1 << 20);
  const Profile profile = read_profile(ConfigNode::parse(to_json(written), "profile.json"));
  const auto links = HostLinks::of(profile, "lab", 4);
  ASSERT_TRUE(links);
  EXPECT_DOUBLE_EQ(links->seconds(0, 1, Bytes(25'000'000)), 1e-4 + 1);
  EXPECT_DOUBLE_EQ(links->seconds(3, 1, Bytes(25'000'000)), 1e-4 + 0.1);
  EXPECT_EQ(links->seconds(2, 2, Bytes(1)), 0);
  EXPECT_THROW(links->seconds(0, 4, Bytes(1)), std::out_of_range);
  EXPECT_THAT(shortest_ring(4, [&](int a, int b) { return links->seconds(a, b, kRingPiece); }), ElementsAre(0, 2, 1, 3));
}

// A host that computes meanwhile makes some messages late.
TEST(HostLinks, AreAsFastAsTheirFastestMessages) {
  Profile profile = one_slow_pair();
  const Bytes small(16 << 10), large(1 << 20);
  profile.communication.back().points = {{small, {0.02, 0.001, 0.03}}, {large, {0.09, 0.004, 0.2}}};
  const auto links = HostLinks::of(profile, "lab", 4);
  ASSERT_TRUE(links);
  EXPECT_DOUBLE_EQ(links->seconds(2, 3, large), 0.004);
  EXPECT_DOUBLE_EQ(links->seconds(2, 3, small), 0.001);
}

TEST(HostLinks, NeedEveryPair) {
  Profile profile = one_slow_pair();
  EXPECT_TRUE(HostLinks::of(profile, "lab", 4));
  EXPECT_FALSE(HostLinks::of(profile, "other", 4));
  EXPECT_FALSE(HostLinks::of(profile, "lab", 5));
  EXPECT_FALSE(HostLinks::of(profile, "lab", 2));
  profile.communication.pop_back();
  EXPECT_FALSE(HostLinks::of(profile, "lab", 4));
}

// Times of pairs are none of the link that all hosts share.
TEST(HostLinks, ChangeNoTimeOfTheirLink) {
  cluster::Link link;
  link.name = "lab";
  link.bandwidth = BytesPerSecond(1e8);
  link.latency = Seconds(1e-3);
  EXPECT_EQ(collective_time(one_slow_pair(), "send", Bytes(1 << 20), 2, link, Medium::adapter),
            collective_time({}, "send", Bytes(1 << 20), 2, link, Medium::adapter));
}

}  // namespace
}  // namespace tessera::profile
