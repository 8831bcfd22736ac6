// A table as all of its servers together have it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ps/client.hpp"

namespace tessera::ps {

struct TableSummary {
  int servers = 0;                        // that hold a part of it
  std::uint64_t rows = 0, most_rows = 0;  // the latter of the fullest server
  TableMemory memory;
  std::uint64_t keys_pulled = 0, keys_pushed = 0, gradients_refused = 0;
  AnswerLatencies latencies;

  // Rows of the fullest server over their mean. None without rows.
  std::optional<double> skew() const;
};
// 0 to 1, of the keys that were looked for: whose rows were in memory; of a finished table, that have a row. None where none was.
std::optional<double> hit_share(const TableMemory& memory);

TableSummary summarize(std::span<const ServerStatus> servers, std::string_view table);

// `after` with all counters (keys, refused gradients, hits, misses, latencies) relative to `before`. A table that was not there before, or
// a server that has begun anew, started from zero.
std::vector<ServerStatus> since(std::span<const ServerStatus> before, std::span<const ServerStatus> after);

}  // namespace tessera::ps
