#include <gtest/gtest.h>

#include <cstdint>
#include <map>

#include "base/random.hpp"
#include "ps/extents.hpp"

namespace tessera::ps {
namespace {

TEST(Extents, NoTwoOverlapAndAllOfThemCanBeGivenBack) {
  Extents extents;
  std::map<std::uint64_t, std::uint64_t> taken;
  Random random(3);
  const auto give_back_one = [&] {
    const auto one = std::next(taken.begin(), static_cast<std::ptrdiff_t>(random.below(taken.size())));
    extents.give_back(one->first, one->second);
    taken.erase(one);
  };
  for (int step = 0; step < 2000; ++step) {
    if (taken.size() > 50 || (!taken.empty() && random.below(3) == 0)) {
      give_back_one();
      continue;
    }
    const std::uint64_t bytes = 1 + random.below(5000), alignment = std::uint64_t{1} << random.below(12);
    const std::uint64_t begin = random.below(2) == 0 ? extents.take(bytes) : extents.take(bytes, alignment);
    const auto next = taken.lower_bound(begin);
    ASSERT_TRUE(next == taken.end() || begin + bytes <= next->first);
    ASSERT_TRUE(next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= begin);
    ASSERT_LE(begin + bytes, extents.end());
    taken[begin] = bytes;
  }
  while (!taken.empty()) give_back_one();
  EXPECT_EQ(extents.end(), 0u);
}

TEST(Extents, BeginWhereTheyAreToldTo) {
  Extents extents;
  EXPECT_EQ(extents.take(10), 0u);
  EXPECT_EQ(extents.take(100, 64), 64u);
  EXPECT_EQ(extents.take(54), 10u);  // the gap before it
  EXPECT_EQ(extents.end(), 164u);
}

}  // namespace
}  // namespace tessera::ps
