#include "ps/key_index.hpp"

#include <gtest/gtest.h>

#include <unordered_map>
#include <vector>

#include "base/random.hpp"

namespace tessera::ps {
namespace {

std::uint32_t find(const KeyIndex& index, std::uint64_t key) { return index.find(key, index.ask(key)); }

TEST(KeyIndex, AnswersAsAMapUnderInsertionsAndErasures) {
  KeyIndex index;
  std::unordered_map<std::uint64_t, std::uint32_t> expected;
  Random random(3);
  for (std::uint32_t step = 0; step < 300'000; ++step) {
    // Of few keys, so that many are there; some of them 0 and the largest.
    const std::uint64_t drawn = random.below(100'000), key = drawn == 1 ? ~std::uint64_t{0} : drawn;
    const auto found = expected.find(key);
    ASSERT_EQ(find(index, key), found == expected.end() ? KeyIndex::kNone : found->second);
    if (found == expected.end()) {
      index.insert(key, step);
      expected[key] = step;
    } else if (random.below(2) == 0) {
      ASSERT_EQ(index.erase(key), found->second);
      expected.erase(found);
    }
  }
  EXPECT_EQ(index.size(), expected.size());
  std::size_t seen = 0;
  index.for_each({}, [&](std::uint64_t key, std::uint32_t row) {
    ++seen;
    EXPECT_EQ(expected.at(key), row);
  });
  EXPECT_EQ(seen, expected.size());
}

// What a caller may draw keys from: counters, multiples of powers of two, high bits alone, random ones.
TEST(KeyIndex, KeepsItsMemoryWhateverTheKeysLookLike) {
  for (const int kind : {0, 1, 2, 3}) {
    KeyIndex index;
    Random random(5);
    for (std::uint32_t i = 0; i < 500'000; ++i) {
      const std::uint64_t key = kind == 0 ? i : kind == 1 ? std::uint64_t{i} << 12 : kind == 2 ? std::uint64_t{i} << 40 : random.next();
      index.insert(key, i);
    }
    // A segment is split when some 85 % of its places are taken: 64 bytes hold 5 keys, of which half are free after it.
    EXPECT_LT(static_cast<double>(index.bytes()) / 500'000, 34) << kind;
    for (std::uint32_t i = 0; i < 500'000 && kind == 1; ++i) ASSERT_EQ(find(index, std::uint64_t{i} << 12), i);
  }
}

TEST(KeyIndex, ErasedPlacesAreTakenAgain) {
  KeyIndex index;
  for (std::uint64_t key = 0; key < 1'000'000; ++key) {
    index.insert(key, 1);
    if (key >= 2'000) index.erase(key - 2'000);
  }
  EXPECT_EQ(index.size(), 2'000u);
  EXPECT_LT(index.bytes(), std::size_t{256} << 10);
}

TEST(KeyIndex, GoesThroughARangeAndGivesBackTheMemoryOfWhatLeaves) {
  KeyIndex index;
  for (std::uint32_t i = 0; i < 300'000; ++i) index.insert(i, i);
  const std::size_t full = index.bytes();
  // Neither a segment's hashes nor all of them.
  const HashRange range{std::uint64_t{1} << 60, (std::uint64_t{5} << 60) + 12345};
  std::vector<std::uint64_t> visited, asked;
  index.for_each(range, [&](std::uint64_t key, std::uint32_t row) {
    EXPECT_EQ(key, row);
    EXPECT_TRUE(range.has(hash_of(key)));
    visited.push_back(key);
  });
  EXPECT_NEAR(static_cast<double>(visited.size()), 75'000, 2000);
  index.erase_if(range, [&](std::uint64_t key, std::uint32_t) {
    asked.push_back(key);
    return key % 8 != 0;
  });
  EXPECT_EQ(asked, visited);
  for (std::uint64_t key = 0; key < 300'000; ++key)
    ASSERT_EQ(find(index, key), range.has(hash_of(key)) && key % 8 != 0 ? KeyIndex::kNone : key);
  index.erase_if({}, [](std::uint64_t key, std::uint32_t) { return key % 8 != 0; });
  EXPECT_EQ(index.size(), 37'500u);
  EXPECT_LT(index.bytes(), full / 4);
  for (std::uint32_t i = 1; i < 300'000; i += 8) index.insert(i, i);
  for (std::uint64_t key = 0; key < 300'000; ++key) ASSERT_EQ(find(index, key), key % 8 <= 1 ? key : KeyIndex::kNone);
}

}  // namespace
}  // namespace tessera::ps
