#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "base/hash.hpp"
#include "comm/processes.hpp"

namespace tessera::comm {
namespace {

using testing::Ranks;

// Small integers, so that every type and every order of additions is exact.
template <typename T>
struct As {
  static T from(std::int64_t value) { return static_cast<T>(value); }
};
struct Bf16 {
  std::uint16_t bits;
  bool operator==(const Bf16&) const = default;
};
template <>
struct As<Bf16> {
  static Bf16 from(std::int64_t value) {
    return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16)};
  }
};

std::int64_t value_of(int rank, std::size_t index, int salt) {
  return static_cast<std::int64_t>((index * 7 + static_cast<std::size_t>(rank) * 3 + static_cast<std::size_t>(salt)) % 11);
}

std::int64_t reduced(int ranks, std::size_t index, int salt, Reduction reduction) {
  std::int64_t result = value_of(0, index, salt);
  for (int rank = 1; rank < ranks; ++rank) {
    const std::int64_t next = value_of(rank, index, salt);
    result = reduction == Reduction::sum ? result + next : reduction == Reduction::max ? std::max(result, next) : std::min(result, next);
  }
  return result;
}

template <typename T>
std::vector<T> filled(int rank, std::size_t count, int salt) {
  std::vector<T> data(count);
  for (std::size_t i = 0; i < count; ++i) data[i] = As<T>::from(value_of(rank, i, salt));
  return data;
}

template <typename... Parts>
void check(bool good, const Parts&... what) {
  if (!good) throw Error(ErrorCode::internal, text("wrong result: ", what...));
}

template <typename T>
void check_all(const Group& group, DataType type, std::size_t count, int salt) {
  const int n = group.size();
  const int me = group.rank();
  const std::string what = text("count ", count, ", type ", static_cast<int>(type), ", rank ", me, " of ", n);
  for (const Reduction reduction : {Reduction::sum, Reduction::max, Reduction::min}) {
    std::vector<T> data = filled<T>(me, count, salt);
    group.all_reduce(data.data(), count, type, reduction).wait();
    for (std::size_t i = 0; i < count; ++i) check(data[i] == As<T>::from(reduced(n, i, salt, reduction)), "all_reduce ", what, " at ", i);
  }
  const std::size_t all = count * static_cast<std::size_t>(n);
  const std::size_t own = count * static_cast<std::size_t>(me);
  {
    std::vector<T> input = filled<T>(me, all, salt);
    std::vector<T> output(count);
    group.reduce_scatter(input.data(), output.data(), count, type).wait();
    check(input == filled<T>(me, all, salt), "reduce_scatter changed its input: " + what);
    for (std::size_t i = 0; i < count; ++i)
      check(output[i] == As<T>::from(reduced(n, own + i, salt, Reduction::sum)), "reduce_scatter ", what, " at ", i);
    group.reduce_scatter(input.data(), input.data() + own, count, type).wait();
    check(std::equal(output.begin(), output.end(), input.begin() + static_cast<std::ptrdiff_t>(own)), "reduce_scatter in place: " + what);
  }
  {
    const std::vector<T> input = filled<T>(me, count, salt);
    std::vector<T> output(all);
    group.all_gather(input.data(), output.data(), count, type).wait();
    std::vector<T> expected;
    for (int rank = 0; rank < n; ++rank) {
      const std::vector<T> part = filled<T>(rank, count, salt);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    check(output == expected, "all_gather " + what);
    std::vector<T> in_place(all);
    std::copy(input.begin(), input.end(), in_place.begin() + static_cast<std::ptrdiff_t>(own));
    group.all_gather(in_place.data() + own, in_place.data(), count, type).wait();
    check(in_place == expected, "all_gather in place " + what);
  }
  for (int root = 0; root < n; ++root) {
    std::vector<T> data = filled<T>(me == root ? 100 + root : me, count, salt);
    group.broadcast(data.data(), count, type, root).wait();
    check(data == filled<T>(100 + root, count, salt), "broadcast " + what);
  }
  {
    const std::vector<T> input = filled<T>(me, all, salt);
    std::vector<T> output(all);
    group.all_to_all(input.data(), output.data(), count, type).wait();
    for (int rank = 0; rank < n; ++rank) {
      const std::vector<T> theirs = filled<T>(rank, all, salt);
      check(std::equal(theirs.begin() + static_cast<std::ptrdiff_t>(own), theirs.begin() + static_cast<std::ptrdiff_t>(own + count),
                       output.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * count)),
            "all_to_all " + what);
    }
  }
  group.barrier().wait();
}

void check_type(const Group& group, DataType type, std::size_t count, int salt) {
  switch (type) {
    case DataType::f32: return check_all<float>(group, type, count, salt);
    case DataType::f64: return check_all<double>(group, type, count, salt);
    case DataType::bf16: return check_all<Bf16>(group, type, count, salt);
    case DataType::i32: return check_all<std::int32_t>(group, type, count, salt);
    case DataType::i64: return check_all<std::int64_t>(group, type, count, salt);
    case DataType::u8: return check_all<std::uint8_t>(group, type, count, salt);
  }
}

void expect_all_ok(Ranks& ranks) {
  const auto outcomes = ranks.wait();
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank)
    EXPECT_EQ(outcomes[rank].text, "ok") << "rank " << rank << " signal " << outcomes[rank].signal;
}

struct World {
  int size;
  bool shared_memory;
  std::string hosts = {};  // a letter for each rank: its host
};
std::ostream& operator<<(std::ostream& out, const World& world) {
  if (!world.hosts.empty()) return out << "on_" << world.hosts;
  return out << world.size << (world.shared_memory ? "_shared" : "_network");
}
World on_hosts(const std::string& hosts) { return {static_cast<int>(hosts.size()), true, hosts}; }
Options options_in(const World& world, int rank, const std::string& place) {
  Options options = testing::options(rank, world.size, place);
  options.shared_memory = world.shared_memory;
  if (!world.hosts.empty()) options.host = world.hosts.substr(static_cast<std::size_t>(rank), 1);
  return options;
}

class Collectives : public ::testing::TestWithParam<World> {
 protected:
  void on_every_rank(const std::function<void(Communicator&)>& body) {
    const std::string place = free_loopback_place();
    Ranks ranks(GetParam().size, [&](int rank) {
      const auto communicator = Communicator::connect(options_in(GetParam(), rank, place));
      body(*communicator);
      return std::string("ok");
    });
    expect_all_ok(ranks);
  }
};

TEST_P(Collectives, AreCorrectForEveryTypeAndOddSizes) {
  on_every_rank([](Communicator& communicator) {
    const Group world = communicator.world();
    int salt = 0;
    for (const DataType type : {DataType::f32, DataType::f64, DataType::bf16, DataType::i32, DataType::i64, DataType::u8}) {
      for (const std::size_t count : {0UL, 1UL, 2UL, 3UL, 17UL, 1023UL, 5001UL, 70001UL}) check_type(world, type, count, salt++);
    }
  });
}

TEST_P(Collectives, AreCorrectForLargeBuffers) {
  on_every_rank([](Communicator& communicator) {
#if defined(__SANITIZE_THREAD__)
    check_all<float>(communicator.world(), DataType::f32, 140007, 1);  // of two segments: threads do the same for more, and for other types
#else
    check_all<float>(communicator.world(), DataType::f32, 400007, 1);
    check_all<Bf16>(communicator.world(), DataType::bf16, 300003, 2);
#endif
  });
}

TEST_P(Collectives, RunSideBySideInSeveralGroups) {
  on_every_rank([](Communicator& communicator) {
    const int n = communicator.world_size();
    const int me = communicator.rank();
    std::vector<int> forward;
    std::vector<int> backward;
    for (int rank = 0; rank < n; ++rank) {
      forward.push_back(rank);
      backward.insert(backward.begin(), rank);
    }
    std::vector<Group> groups{communicator.world(), communicator.group(forward, "a"), communicator.group(backward, "b")};
    if (me == 0 || (me == 2 && n > 2)) groups.push_back(communicator.group(n > 2 ? std::vector<int>{0, 2} : std::vector<int>{0}, "even"));
    std::vector<std::vector<std::int64_t>> buffers;
    std::vector<Handle> handles;
    constexpr std::size_t kCount = 30001;
    // Each group's operations are submitted in their order, the groups in a different order on each rank.
    for (std::size_t round = 0; round < 5; ++round) {
      for (std::size_t i = 0; i < groups.size(); ++i) {
        const std::size_t which = (i + static_cast<std::size_t>(me)) % groups.size();
        buffers.emplace_back(kCount, static_cast<std::int64_t>(which * 100 + round) + me);
        handles.push_back(groups[which].all_reduce(buffers.back().data(), kCount, DataType::i64));
      }
    }
    for (const Handle& handle : handles) handle.wait();
    std::size_t at = 0;
    for (std::size_t round = 0; round < 5; ++round) {
      for (std::size_t i = 0; i < groups.size(); ++i, ++at) {
        const std::size_t which = (i + static_cast<std::size_t>(me)) % groups.size();
        std::int64_t expected = 0;
        for (const int rank : groups[which].ranks()) expected += static_cast<std::int64_t>(which * 100 + round) + rank;
        check(std::all_of(buffers[at].begin(), buffers[at].end(), [&](std::int64_t value) { return value == expected; }), "group ", which,
              " round ", round);
        check(handles[at].done() && handles[at].elapsed().value >= 0, "elapsed");
      }
    }
  });
}

TEST_P(Collectives, MessagesWithEqualTagsArriveInOrder) {
  on_every_rank([](Communicator& communicator) {
    const Group world = communicator.world();
    const int n = world.size();
    constexpr std::size_t kMessages = 12;
    const auto size_of_message = [](std::size_t index) { return index * index * index * 251 + index; };
    std::vector<std::vector<std::byte>> out;
    std::vector<std::vector<std::byte>> in;
    std::vector<Handle> handles;
    for (int peer = 0; peer < n; ++peer) {
      for (std::size_t i = 0; i < kMessages; ++i) {
        in.emplace_back(size_of_message(i));
        out.emplace_back(size_of_message(i), static_cast<std::byte>(world.rank() * 16 + static_cast<int>(i)));
      }
    }
    for (std::size_t i = 0; i < kMessages; ++i) {
      for (int peer = 0; peer < n; ++peer) {
        const std::size_t at = static_cast<std::size_t>(peer) * kMessages + i;
        handles.push_back(world.receive(in[at], peer, 5));
        handles.push_back(world.send(out[at], peer, 5));
      }
    }
    for (const Handle& handle : handles) handle.wait();
    for (int peer = 0; peer < n; ++peer) {
      for (std::size_t i = 0; i < kMessages; ++i) {
        const auto& message = in[static_cast<std::size_t>(peer) * kMessages + i];
        check(std::all_of(message.begin(), message.end(),
                          [&](std::byte byte) { return byte == static_cast<std::byte>(peer * 16 + static_cast<int>(i)); }),
              "message ", i, " from ", peer);
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, Collectives,
                         ::testing::Values(World{1, true}, World{2, true}, World{3, true}, World{4, true}, World{2, false}, World{3, false},
                                           World{4, false}, World{5, false}, on_hosts("aabb"), on_hosts("ababab"), on_hosts("abccab"),
                                           on_hosts("aabbc")),
                         [](const auto& info) { return text(info.param); });

// Sums that depend on the order of additions must still have the same bits on every rank and in every run.
TEST(Determinism, TheSameCallGivesTheSameBits) {
  for (const World& world : {World{4, true}, World{4, false}, on_hosts("abab")}) {
    for (const DataType type : {DataType::f32, DataType::bf16}) {
      std::vector<std::string> first;
      for (int run = 0; run < 2; ++run) {
        const std::string place = free_loopback_place();
        Ranks ranks(4, [&](int rank) {
          const auto communicator = Communicator::connect(options_in(world, rank, place));
          std::string hashes;
          for (const std::size_t count : {7UL, 3001UL, 20011UL, 900001UL}) {
            std::vector<std::uint32_t> data(count);
            for (std::size_t i = 0; i < count; ++i) {
              const float value =
                  static_cast<float>(seed_of(i, static_cast<std::uint64_t>(rank)) >> 40) * (i % 3 == 0 ? 1e-6F : 1.0F) - 1e6F;
              data[i] = std::bit_cast<std::uint32_t>(value);
              if (type == DataType::bf16) data[i] = (data[i] & 0xffff0000U) | (data[i] >> 16);
            }
            communicator->world().all_reduce(data.data(), type == DataType::bf16 ? count * 2 : count, type).wait();
            hashes += hash128_hex(std::as_bytes(std::span(data)));
          }
          return hashes;
        });
        for (const auto& outcome : ranks.wait()) {
          EXPECT_GE(outcome.text.size(), 32U * 4);
          first.push_back(outcome.text);
        }
      }
      EXPECT_THAT(first, ::testing::Each(first.front()));
    }
  }
}

}  // namespace
}  // namespace tessera::comm
