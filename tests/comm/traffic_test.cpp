// Ranks count what they send, and what a group sends in a collective is what the formula says.
#include <gtest/gtest.h>

#include <optional>
#include <set>

#include "comm/processes.hpp"

namespace tessera::comm {
namespace {

using testing::Ranks;

using Start = Handle (*)(const Group& world, std::byte* data, std::size_t count);
struct Operation {
  const char* name;
  Start start;
  bool buffer_of_all;  // holds `count` elements for each rank
};
constexpr Operation kOperations[] = {
    {"all_reduce", [](const Group& world, std::byte* data, std::size_t count) { return world.all_reduce(data, count, DataType::f32); },
     false},
    {"reduce_scatter",
     [](const Group& world, std::byte* data, std::size_t count) { return world.reduce_scatter(data, data, count, DataType::f32); }, true},
    {"all_gather",
     [](const Group& world, std::byte* data, std::size_t count) {
       return world.all_gather(data + static_cast<std::size_t>(world.rank()) * 4 * count, data, count, DataType::f32);
     },
     true},
    {"all_to_all",
     [](const Group& world, std::byte* data, std::size_t count) {
       return world.all_to_all(data, data + 4 * count * static_cast<std::size_t>(world.size()), count, DataType::f32);
     },
     true}};

// What all ranks of a group send in a collective; no value where it does not matter.
using Expected = std::function<std::optional<Bytes>(const std::string& operation, int ranks, Bytes buffer)>;

// "ok", or what was sent and should have been.
std::string compare(Communicator& communicator, const Expected& expected_of) {
  const Group world = communicator.world();
  const int ranks = world.size();
  for (const Operation& operation : kOperations)
    for (const std::size_t count : {1UL, 1001UL, 4096UL, 16384UL, 16385UL, 1UL << 18}) {
      const Group group = communicator.group(world.ranks(), text(operation.name, count));
      std::vector<std::byte> data(8 * count * static_cast<std::size_t>(ranks));
      operation.start(group, data.data(), count).wait();
      const Traffic own = communicator.traffic().at(text(operation.name, count));
      std::int64_t bytes = own.bytes.value;
      world.all_reduce(&bytes, 1, DataType::i64).wait();
      const Bytes buffer(static_cast<std::int64_t>(4 * count) * (operation.buffer_of_all ? ranks : 1));
      const auto sent = expected_of(operation.name, ranks, buffer);
      const Bytes expected = sent.value_or(Bytes(bytes));
      if (bytes != expected.value || own.collectives != 1 || own.messages != 0)
        return text(operation.name, " of ", count, ": ", bytes, " bytes instead of ", expected.value, ", ", own.collectives,
                    " collectives");
    }
  return "ok";
}

void expect_all_ok(int count, const std::function<void(Options&)>& set, const std::function<std::string(Communicator&)>& body) {
  const std::string place = free_loopback_place();
  Ranks ranks(count, [&](int rank) {
    Options options = testing::options(rank, count, place, 60);
    set(options);
    return body(*Communicator::connect(options));
  });
  for (const auto& outcome : ranks.wait()) EXPECT_EQ(outcome.text, "ok") << "signal " << outcome.signal;
}

void without_shared_memory(Options& options) { options.shared_memory = false; }

TEST(Traffic, OfACollectiveIsWhatTheFormulaSays) {
  for (const int ranks : {2, 3, 4})
    expect_all_ok(ranks, without_shared_memory, [](Communicator& communicator) { return compare(communicator, bytes_on_network); });
}

TEST(Traffic, OfSharedMemoryHasNoBytes) {
  expect_all_ok(
      2, [](Options&) {},
      [](Communicator& communicator) { return compare(communicator, [](const auto&...) { return std::optional(Bytes(0)); }); });
}

TEST(Traffic, OfTwoLevelsIsWhatGoesBetweenHosts) {
  for (const std::string hosts : {"aabb", "abab", "abcabc", "aabbab"})
    expect_all_ok(
        static_cast<int>(hosts.size()), [&](Options& options) { options.host = hosts.substr(static_cast<std::size_t>(options.rank), 1); },
        [&](Communicator& communicator) {
          const int count = static_cast<int>(std::set<char>(hosts.begin(), hosts.end()).size());
          return compare(communicator, [&](const std::string& operation, int ranks, Bytes buffer) -> std::optional<Bytes> {
            if (!runs_on_levels(operation, ranks, buffer)) return {};
            return bytes_between_hosts(operation, count, buffer);
          });
        });
}

// In the order "abab" every message of a ring goes to the other host.
TEST(Traffic, OfOneRingOverHostsIsThatOfHostsOfTheirOwn) {
  expect_all_ok(
      4,
      [](Options& options) {
        options.host = options.rank % 2 == 0 ? "a" : "b";
        options.two_levels = false;
      },
      [](Communicator& communicator) {
        return compare(communicator, [](const std::string& operation, int ranks, Bytes buffer) -> std::optional<Bytes> {
          if (!runs_on_levels(operation, ranks, buffer)) return {};
          return bytes_on_network(operation, ranks, buffer);
        });
      });
}

TEST(Traffic, OfMessagesCountsThoseThatWereSent) {
  expect_all_ok(2, without_shared_memory, [](Communicator& communicator) -> std::string {
    const Group world = communicator.world();
    std::vector<std::byte> data(1000);
    for (int i = 0; i < 3; ++i) (world.rank() == 0 ? world.send(data, 1, 7) : world.receive(data, 0, 7)).wait();
    const Traffic own = communicator.traffic().at("world");
    const Traffic expected = world.rank() == 0 ? Traffic{3, 0, Bytes(3000)} : Traffic{};
    return own == expected ? "ok" : text(own.messages, " messages, ", own.bytes.value, " bytes");
  });
}

}  // namespace
}  // namespace tessera::comm
