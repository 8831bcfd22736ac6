#include "ps/summary.hpp"

#include <algorithm>

namespace tessera::ps {

std::optional<double> TableSummary::skew() const {
  if (rows == 0) return {};
  return static_cast<double>(most_rows) * servers / static_cast<double>(rows);
}

std::optional<double> hit_share(const TableMemory& memory) {
  const std::uint64_t looked_for = memory.hits + memory.misses;
  if (looked_for == 0) return {};
  return static_cast<double>(memory.hits) / static_cast<double>(looked_for);
}

TableSummary summarize(std::span<const ServerStatus> servers, std::string_view name) {
  TableSummary all;
  for (const ServerStatus& server : servers)
    for (const TableStatus& table : server.tables) {
      if (table.name != name) continue;
      ++all.servers;
      all.rows += table.rows;
      all.most_rows = std::max(all.most_rows, table.rows);
      all.memory.index += table.memory.index;
      all.memory.rows += table.memory.rows;
      all.memory.disk += table.memory.disk;
      all.memory.hits += table.memory.hits;
      all.memory.misses += table.memory.misses;
      all.keys_pulled += table.keys_pulled;
      all.keys_pushed += table.keys_pushed;
      all.gradients_refused += table.gradients_refused;
      all.latencies.pulls += table.latencies.pulls;
      all.latencies.pushes += table.latencies.pushes;
    }
  return all;
}

std::vector<ServerStatus> since(std::span<const ServerStatus> before, std::span<const ServerStatus> after) {
  std::vector<ServerStatus> out(after.begin(), after.end());
  for (std::size_t server = 0; server < std::min(before.size(), after.size()); ++server)
    for (TableStatus& now : out[server].tables) {
      const auto& tables = before[server].tables;
      const auto then = std::ranges::find(tables, now.name, &TableStatus::name);
      if (then == tables.end()) continue;
      const auto subtract = [](std::uint64_t& later, std::uint64_t earlier) {
        if (later >= earlier) later -= earlier;
      };
      subtract(now.memory.hits, then->memory.hits);
      subtract(now.memory.misses, then->memory.misses);
      subtract(now.keys_pulled, then->keys_pulled);
      subtract(now.keys_pushed, then->keys_pushed);
      subtract(now.gradients_refused, then->gradients_refused);
      now.latencies = {.pulls = since(then->latencies.pulls, now.latencies.pulls),
                       .pushes = since(then->latencies.pushes, now.latencies.pushes)};
    }
  return out;
}

}  // namespace tessera::ps
