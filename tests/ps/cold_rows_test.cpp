#include "ps/cold_rows.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <thread>
#include <vector>

#include "base/temporary_folder.hpp"

namespace tessera::ps {
namespace {

constexpr int kPartitionBits = 2;

// Rows of one number each.
class Numbers {
 public:
  Numbers() : keys(4000) { std::iota(keys.begin(), keys.end(), std::uint64_t{1}); }

  // Gives these keys the number.
  void add(std::vector<std::uint64_t> these, std::uint64_t number) {
    std::ranges::sort(these, {}, hash_of);
    for (auto begin = these.begin(); begin != these.end();) {
      const std::size_t partition = rows.partition_of(hash_of(*begin));
      const auto end = std::find_if(begin, these.end(), [&](std::uint64_t key) { return rows.partition_of(hash_of(key)) != partition; });
      rows.add(partition, static_cast<std::size_t>(end - begin), [&](std::size_t i, std::byte* record) {
        std::memcpy(Record::begin(record, begin[static_cast<std::ptrdiff_t>(i)], 0), &number, sizeof number);
      });
      begin = end;
    }
  }
  std::shared_ptr<Ahead> look_ahead() {
    std::shared_ptr<Ahead> ahead = rows.look_ahead(keys);
    while (ahead != nullptr && !ahead->done) std::this_thread::yield();
    return ahead;
  }
  // By key.
  std::map<std::uint64_t, std::uint64_t> find(Ahead* ahead) {
    std::vector<std::size_t> places(keys.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    std::map<std::uint64_t, std::uint64_t> out;
    const auto found = [&](std::size_t item, const std::byte* record) {
      EXPECT_EQ(Record::key(record), keys[item]);
      std::uint64_t number = 0;
      std::memcpy(&number, Record::row(record), sizeof number);
      EXPECT_TRUE(out.emplace(keys[item], number).second) << "found twice";
    };
    rows.find(keys, found, ahead, places);
    return out;
  }

  TemporaryFolder folder;
  ColdRows rows{folder.path(), sizeof(std::uint64_t), kPartitionBits, 1 << 20};
  std::vector<std::uint64_t> keys;
};

TEST(ColdRows, WhatWasLookedForAheadIsWhatThereWas) {
  Numbers numbers;
  numbers.add({numbers.keys.begin(), numbers.keys.begin() + 3000}, 7);
  const auto ahead = numbers.look_ahead();
  ASSERT_NE(ahead, nullptr);
  EXPECT_EQ(std::ranges::count(ahead->records, nullptr), 1000);
  const auto found = numbers.find(ahead.get());
  EXPECT_EQ(found.size(), 3000u);
  EXPECT_EQ(found, numbers.find(nullptr));
}

TEST(ColdRows, WhatComesOrGoesAfterALookAheadCounts) {
  Numbers numbers;
  numbers.add(numbers.keys, 7);
  const auto ahead = numbers.look_ahead();
  ASSERT_NE(ahead, nullptr);
  // One partition gets a newer piece, and a key of another one goes.
  std::vector<std::uint64_t> newer;
  std::ranges::copy_if(numbers.keys, std::back_inserter(newer),
                       [&](std::uint64_t key) { return numbers.rows.partition_of(hash_of(key)) == 1; });
  numbers.add(newer, 8);
  const auto gone = std::ranges::find_if(numbers.keys, [&](std::uint64_t key) { return numbers.rows.partition_of(hash_of(key)) == 2; });
  EXPECT_TRUE(numbers.rows.erase(*gone));
  const auto found = numbers.find(ahead.get());
  EXPECT_EQ(found.size(), numbers.keys.size() - 1);
  EXPECT_FALSE(found.contains(*gone));
  for (const std::uint64_t key : newer) EXPECT_EQ(found.at(key), 8u);
  EXPECT_EQ(found, numbers.find(nullptr));
}

// Merges give the bytes of old pieces to new ones.
TEST(ColdRows, MergesAfterALookAheadChangeNothing) {
  Numbers numbers;
  for (std::uint64_t turn = 0; turn < 40; ++turn) {
    numbers.add(numbers.keys, 100 + turn);
    const auto ahead = numbers.look_ahead();
    ASSERT_NE(ahead, nullptr);
    for (std::uint64_t more = 0; more < turn % 5; ++more) numbers.add(numbers.keys, 1000 * turn + more);
    const std::uint64_t last = turn % 5 == 0 ? 100 + turn : 1000 * turn + turn % 5 - 1;
    const auto found = numbers.find(ahead.get());
    ASSERT_EQ(found.size(), numbers.keys.size());
    for (const auto& [key, number] : found) ASSERT_EQ(number, last) << "turn " << turn << ", key " << key;
  }
}

TEST(ColdRows, KeysThatTheOtherThreadHasNotComeToAreLookedForAtOnce) {
  Numbers numbers;
  numbers.add(numbers.keys, 7);
  Ahead never{numbers.keys, {}, {}};
  EXPECT_EQ(numbers.find(&never).size(), numbers.keys.size());
  EXPECT_TRUE(never.unwanted);
}

// Not all keys are asked for again, and others are asked for beside them.
TEST(ColdRows, OtherKeysThanWereLookedForAheadAreFoundToo) {
  Numbers numbers;
  numbers.add(numbers.keys, 7);
  const auto ahead = numbers.look_ahead();
  std::ranges::reverse(numbers.keys);
  EXPECT_EQ(numbers.find(ahead.get()).size(), numbers.keys.size());
  numbers.keys.resize(10);
  numbers.keys.push_back(1'000'000);
  EXPECT_EQ(numbers.find(ahead.get()).size(), 10u);
}

}  // namespace
}  // namespace tessera::ps
