// internal: rows of Parquet files. Arrow's libraries take 60 MB and 8 ms to load, so what uses them is a module of its own beside the
// program, libtessera_parquet.so, that is loaded with the first Parquet file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

// The values of the wanted columns in one row (missing ones empty), valid during the call; the row's number from 0, and its place in the
// file from 0 to 1.
using ParquetVisitor = std::function<void(std::span<const std::string_view> values, std::int64_t row, double share)>;

// What columns may hold. any: also numbers and truth values, which are visited as text (1.5 is "1.5", true is "1"), and lists of any of
// these, whose values stand with kParquetListSeparator between them.
enum class ParquetValues { text, any };
inline constexpr char kParquetListSeparator = '\x1F';

// Visits all rows in order. Throws not_found where this build has no Parquet or its libraries are gone, corrupt for a damaged file, and
// invalid_config for a column that is not there, with the nearest name, or holds no text.
void read_parquet(const std::filesystem::path& file, const std::vector<std::string>& columns, const ParquetVisitor& visit,
                  ParquetValues values = ParquetValues::text);

// What the module answers; it throws nothing but what the visitor throws.
struct ParquetProblem {
  enum class Kind { none, unreadable, no_column, no_text } kind = Kind::none;
  std::string text;                     // in Arrow's words, or the type of the column
  std::string column;                   // of no_column and no_text
  std::vector<std::string> known = {};  // of no_column: the names of all
};

// The module's one function.
inline constexpr const char* kParquetFunction = "tessera_read_parquet";
using ParquetFunction = void (*)(const std::filesystem::path&, const std::vector<std::string>&, ParquetValues, const ParquetVisitor&,
                                 ParquetProblem&);

}  // namespace tessera::data
