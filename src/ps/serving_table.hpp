// A finished table as a file: the values of its rows alone, which many processes read at once and none changes.
//
// The file is mapped, so that opening one takes no time, whatever its size, and the processes of a host share its pages. A look-up costs
// two cache misses: the line of the index that a key's hash names, and the row. docs/file-formats.md has every byte of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.hpp"
#include "base/units.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

// The file of rows in a serving directory (`tessera export RUN --to serving FOLDER`).
inline constexpr const char* kServingTableFile = "rows.table";

// Immutable; safe to use from several threads.
class ServingTable {
 public:
  // Reads the end of the file and checks that it fits the file's size. Throws not_found, io; corrupt for what is no such file.
  explicit ServingTable(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  int dimension() const { return dimension_; }
  RowType type() const { return type_; }
  std::uint64_t rows() const { return rows_; }
  Bytes index_bytes() const;
  Bytes row_bytes() const { return Bytes(static_cast<std::int64_t>(values_.size())); }

  // `values`: [keys, dimension], in the order of the keys, which may repeat; zeros where a key has no row. Returns how many have one.
  // Throws corrupt where the index leads out of the file.
  std::size_t find(std::span<const Key> keys, std::span<float> values) const;
  // Reads every byte. Throws corrupt where one is not what was written.
  void verify() const;

 private:
  struct Line;
  static constexpr std::uint64_t kNoRow = ~std::uint64_t{0};
  std::uint64_t row_of(Key key) const;
  [[noreturn]] void refuse(const std::string& what) const;

  std::filesystem::path path_;
  MappedFile file_;
  std::string name_;
  int dimension_ = 0;
  RowType type_ = RowType::fp32;
  std::uint64_t rows_ = 0;
  std::size_t stride_ = 0;  // bytes of a row
  std::span<const std::byte> values_;
  std::span<const Line> index_;
  std::uint64_t values_checksum_ = 0, index_checksum_ = 0;
};

// Writes such a file from rows in any order. Holds 8 bytes a row in memory, and 24 more at the end. Not thread-safe.
class ServingWriter {
 public:
  // Throws io; invalid_config for a dimension that no table has.
  ServingWriter(FileSystem& files, std::filesystem::path path, std::string name, int dimension, RowType type);
  // A file that is not complete goes.
  ~ServingWriter();
  ServingWriter(const ServingWriter&) = delete;
  ServingWriter& operator=(const ServingWriter&) = delete;

  // `stored`: a row as Table stores it for rows of type `from`, of which the values count. They are copied where the file stores rows of
  // the same type, and else rounded to the nearest. Throws io.
  void add(Key key, RowType from, std::span<const std::byte> stored);
  // The file is on the disk and under its name when it returns, with so many rows. Throws io; corrupt where a key has come twice.
  std::uint64_t finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes the table `name` that servers have saved into `folder` (Client::begin_save), however many they were. `type`: how rows are stored;
// none: as the servers store them. Where a server's rows were saved as a base alone they pass through; deltas are laid over their base, one
// server's rows at a time, in memory up to a limit and beside `path` beyond it. Returns the number of rows. Throws not_found where there is
// no such table, and as load_table() and ServingWriter do.
std::uint64_t write_serving_table(FileSystem& files, const std::filesystem::path& folder, const std::string& name,
                                  std::optional<RowType> type, const std::filesystem::path& path);

}  // namespace tessera::ps
