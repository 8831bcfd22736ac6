// Files of a table's rows: a base has all rows of one moment; a delta has those that were created, changed or erased since the file before
// it. A base and the deltas that follow it, in order, make the table as it was when the last of them began.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/file_system.hpp"
#include "ps/ps.hpp"

namespace tessera::ps {

struct TableFile {
  TableSpec spec;
  SnapshotRows rows;
  std::uint64_t push_count = 0;
  std::uint32_t period = 0;  // of a table with a lifecycle
  std::uint64_t row_count = 0, erased_count = 0;
  std::string id = {};     // of the content
  std::string after = {};  // the id of the file that a delta follows; empty for a base
};

// Writes a table into a file while calls to the table go on: what it writes is the table as it was when the save began. The table lives as
// long as this; one save of a table at a time.
class TableSave {
 public:
  // `last`: the id of the last file of this table, for a delta. A base is written where there is none, after a save that failed, and where
  // another snapshot has come between.
  // Throws Error(io) where the file cannot be created.
  TableSave(Table& table, FileSystem& files, std::filesystem::path path, const std::string& last = {});
  // A file that is not complete goes.
  ~TableSave();
  TableSave(TableSave&&) noexcept;
  TableSave& operator=(TableSave&&) = delete;

  // Writes about so many rows; false once the file is complete, on the disk and under its name. Throws Error(io) when the disk refuses, and
  // then the save has failed.
  bool save_some(std::size_t rows = 1 << 14);
  // The description of the complete file.
  const TableFile& file() const;

 private:
  struct Writer;
  std::unique_ptr<Writer> writer_;
};

// Reads and checks a whole file. Throws not_found, io, or corrupt where a bit is not what was written or the end is missing.
TableFile check_table_file(const std::filesystem::path& path);
// What it is, without its rows. Throws likewise, for the file's first block alone.
TableFile table_file_head(const std::filesystem::path& path);
// Calls with each row as the file comes to it, and ends as check_table_file: what it has given of a file that is refused counts for
// nothing.
TableFile read_table_file(const std::filesystem::path& path, const TakeRow& take);

// Reads and checks a base and the deltas that follow it, in order, and returns the last one. `differs`: says in words what keeps the rows
// of a file's table from being used; empty: nothing. Throws as check_table_file does; invalid_config with those words, or if a file does
// not follow the one before it.
using Difference = std::function<std::string(const TableSpec&)>;
TableFile check_chain(std::span<const std::filesystem::path> files, const Difference& differs);
// Calls with what such files say, in their order: keys whose rows have gone, or keys and their rows as they are stored. `take_waiting`:
// what waits to be admitted, of the last file. Throws likewise, in the midst of it.
using TakeRows = std::function<void(std::span<const Key> erased, std::span<const Key> keys, std::span<const std::byte> stored)>;
using TakeWaiting = std::function<void(std::span<const std::byte> waiting)>;
void read_chain(std::span<const std::filesystem::path> files, const TakeRows& take, const TakeWaiting& take_waiting = {});

// Puts the rows into a table that a base and the deltas that follow it hold, those of keys that `keeps` wants. All files are checked before
// a row is used. Throws Error as check_table_file
// does; and invalid_config where a file is of a table with another name, dimension, type of rows or optimizer, or does not follow the one
// before it, and says what differs.
void load_table(Table& table, std::span<const std::filesystem::path> files, const std::function<bool(Key)>& keeps = {});

}  // namespace tessera::ps
