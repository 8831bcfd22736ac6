// Messages to servers without sockets, and whether two servers hold the same.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/random.hpp"
#include "ps/messages.hpp"
#include "ps/shards.hpp"
#include "ps/tables_helper.hpp"

namespace tessera::ps {

// Messages of one client, of all kinds that a lifecycle has.
class Messages {
 public:
  explicit Messages(std::uint64_t seed) : random_(seed) {}
  std::vector<std::vector<std::byte>> begin() {
    const std::string joining = to_json(Joining{}), opened = to_json(spec());
    return {message({.ask = Ask::join, .table = 0, .count = joining.size(), .client = 7, .number = 0}, joining),
            message({.ask = Ask::open, .table = 0, .count = opened.size(), .client = 7, .number = 0}, opened)};
  }
  static TableSpec spec() {
    return {.name = "ads",
            .dimension = 2,
            .type = RowType::bf16,
            .lifecycle = Lifecycle{.decay = 0.9f,
                                   .admission = {.after = 2},
                                   .waiting_keys = 500,
                                   .forget_after = 2,
                                   .eviction = {.unseen = 2, .below = 0.15f},
                                   .slot_bits = 1,
                                   .slots = {{.slot = 1, .learning_rate_scale = 0.5f, .admission = Admission{.probability = 0.3f}}}}};
  }
  std::vector<std::byte> next() {
    const std::uint64_t kind = random_.below(12);
    if (kind == 0) return message({.ask = Ask::end_period, .table = 0, .count = 0, .client = 7, .number = ++number_}, "");
    if (kind < 4) {
      const EvictPart part{.part = static_cast<std::uint32_t>(random_.below(3)), .parts = 3};
      return message({.ask = Ask::evict, .table = 0, .count = 1, .client = 7, .number = ++number_},
                     {reinterpret_cast<const char*>(&part), sizeof part});
    }
    const std::size_t count = 1 + random_.below(200);
    std::string words;
    const auto add = [&words](const auto& item) { words.append(reinterpret_cast<const char*>(&item), sizeof item); };
    for (std::size_t i = 0; i < count; ++i) add(Key{random_.below(2) << 63 | random_.below(4000)});
    for (std::size_t i = 0; i < 2 * count; ++i) add(static_cast<float>(random_.uniform() - 0.5));
    for (std::size_t i = 0; i < count; ++i)
      add(Impressions{.shows = static_cast<float>(random_.below(3)),
                      .clicks = random_.below(50) == 0 ? NAN : static_cast<float>(random_.below(2))});
    return message({.ask = Ask::push, .table = 0, .count = count, .client = 7, .number = ++number_}, words);
  }

 private:
  static std::vector<std::byte> message(const AskHeader& header, const std::string& words) {
    std::vector<std::byte> out(sizeof header + words.size());
    std::memcpy(out.data(), &header, sizeof header);
    std::memcpy(out.data() + sizeof header, words.data(), words.size());
    return out;
  }
  Random random_;
  std::uint64_t number_ = 0;
};

inline std::vector<std::byte> answer(Shards& shards, std::span<const std::byte> message) {
  std::vector<std::byte> reply(comm::kMostMessageBytes);
  reply.resize(shards.answer(message, reply).value());
  return reply;
}

inline void expect_same(Shards& one, Shards& other) {
  ASSERT_EQ(one.tables().size(), other.tables().size());
  for (std::size_t i = 0; i < one.tables().size(); ++i) {
    Table &first = *one.tables()[i], &second = *other.tables()[i];
    EXPECT_TRUE(rows_of(first) == rows_of(second));
    EXPECT_TRUE(std::ranges::equal(first.waiting(), second.waiting()));
    EXPECT_EQ(first.push_count(), second.push_count());
    EXPECT_EQ(first.period(), second.period());
    EXPECT_EQ(first.lifecycle_counts().admitted, second.lifecycle_counts().admitted);
    EXPECT_EQ(first.lifecycle_counts().held_back, second.lifecycle_counts().held_back);
    EXPECT_EQ(first.lifecycle_counts().evicted, second.lifecycle_counts().evicted);
  }
}

}  // namespace tessera::ps
