// A table that is too large for the memory of the servers which keep it, and what trains it there.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "base/random.hpp"
#include "ps/client.hpp"
#include "ps/server.hpp"
#include "ps/tables_helper.hpp"

namespace tessera::ps {

inline TableSpec large_table() { return {.name = "large", .dimension = 4, .optimizer = {.rule = Rule::adagrad}}; }
// More than twice what the memory of one server has room for.
inline constexpr std::uint64_t kLargeTableKeys = 200'000;

inline ServerOptions on_disk(const std::filesystem::path& folder) {
  return {.storage = TableStorage{.folder = folder, .memory_limit = least_memory(large_table())}};
}

// Equal for servers that were asked the same, wherever they keep the rows.
struct LargeTable {
  explicit LargeTable(std::vector<std::string> places)
      : client(std::move(places), "", {.reconnect = Seconds(30)}), table(client.open(large_table())) {}
  void push(std::uint64_t seed, std::size_t count = 30'000) {
    Random random(seed);
    std::vector<Key> keys(count);
    std::vector<float> gradients(4 * count);
    for (Key& key : keys) key = random.below(kLargeTableKeys);
    for (float& gradient : gradients) gradient = static_cast<float>(random.uniform() - 0.5);
    client.push(table, keys, gradients);
  }
  std::vector<float> values() {
    std::vector<Key> keys(kLargeTableKeys);
    for (std::uint64_t i = 0; i < kLargeTableKeys; ++i) keys[i] = i;
    std::vector<float> all(4 * kLargeTableKeys);
    client.pull(table, keys, all, Absent::zeros);
    return all;
  }
  // Of the server that has the fewest of them there.
  Bytes on_disk() {
    Bytes least(std::numeric_limits<std::int64_t>::max());
    for (const ServerStatus& server : client.status()) least = std::min(least, server.tables.at(0).memory.disk);
    return least;
  }
  Client client;
  Client::TableId table;
};

}  // namespace tessera::ps
