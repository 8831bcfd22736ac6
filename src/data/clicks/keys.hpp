// The 64-bit keys that a model's rows are found by. All tables of a model share them: a key says its table, so that equal ids of two
// tables are two rows. Its upper 16 bits are the table, from 0, the lower 48 the id.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::data {

inline constexpr int kIdBits = 48;
// The id of a field without a value: it has a row of its own, whatever its table declares.
inline constexpr std::uint64_t kEmptyId = (std::uint64_t{1} << kIdBits) - 1;
// A look-up that is not there: of a sample that is not there, or that has fewer than model.lookups.
inline constexpr std::uint64_t kNoKey = ~std::uint64_t{0};

// table < 2^15, id < 2^48.
constexpr std::uint64_t key_of(std::size_t table, std::uint64_t id) { return std::uint64_t{table} << kIdBits | id; }
constexpr std::size_t table_of(std::uint64_t key) { return static_cast<std::size_t>(key >> kIdBits); }
constexpr std::uint64_t id_of(std::uint64_t key) { return key & kEmptyId; }

}  // namespace tessera::data
