// Tables with more rows than memory, and what is asked of them.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "base/random.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

constexpr std::uint64_t kRows = 80'000;

inline Key key_of(std::uint64_t row) { return row * 0xBF58476D1CE4E5B9ull; }

// The least that a table takes, and less than kRows need.
inline Bytes least_memory(const TableSpec& spec) {
  const auto row = static_cast<std::int64_t>(Table(spec).stored_row_bytes()) + 35;
  return Bytes(36'000 * row * 16 / 15 + 300'000);
}

using Rows = std::map<Key, std::vector<std::byte>>;
inline Rows rows_of(const Table& table) {
  Rows rows;
  table.for_each([&](Key key, std::span<const std::byte> stored) {
    EXPECT_TRUE(rows.try_emplace(key, stored.begin(), stored.end()).second) << "key " << key << " comes twice";
  });
  return rows;
}

struct Drawn {
  std::vector<Key> keys;
  std::vector<float> gradients;
};

// Half of the keys are among the first thousand.
inline Drawn batch(Random& random, std::size_t count, int dimension, std::uint64_t rows = kRows) {
  Drawn drawn;
  for (std::size_t i = 0; i < count; ++i) drawn.keys.push_back(key_of(random.below(random.below(2) == 0 ? 1000 : rows)));
  for (std::size_t i = 0; i < count * static_cast<std::size_t>(dimension); ++i)
    drawn.gradients.push_back(static_cast<float>(random.uniform() - 0.5));
  return drawn;
}

// Files of this process may not grow beyond so many bytes, as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_ = {};
  void (*handler_)(int);
};

}  // namespace tessera::ps
