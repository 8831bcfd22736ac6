// Internal. A server's tables written into files beside requests, and read back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.hpp"
#include "ps/ps.hpp"
#include "ps/table_file.hpp"

namespace tessera::ps {

// One of a folder's saved tables: its files by the server that wrote them, a base and the deltas behind it.
struct SavedTable {
  std::string name;
  struct Chain {
    std::vector<std::string> files;
    std::string last;  // the id of the last one
  };
  std::vector<Chain> servers;
};
std::string to_json(const std::vector<SavedTable>& tables);
// Throws corrupt.
std::vector<SavedTable> saved_tables_from_json(const std::string& json);

// What a folder's tables.json says: what counts of the files in it.
struct SavedFolder {
  std::int64_t saves = 0;  // how many there were, so that no file is written over
  std::vector<SavedTable> tables;
};
// Without a tables.json nothing was saved. Throws corrupt, io.
SavedFolder read_saved_folder(const std::filesystem::path& folder);
// Then removes what it no longer counts.
void write_saved_folder(const std::filesystem::path& folder, const SavedFolder& saved);

// What a client asks of one server.
struct SaveOrder {
  std::filesystem::path folder;
  std::size_t server = 0;  // its place among the client's
  std::size_t servers = 1;
  std::int64_t number = 0;              // of the save, in the folder
  std::vector<SavedTable> before = {};  // what is in the folder, to write deltas behind; empty: bases
};
std::string to_json(const SaveOrder& order);
SaveOrder save_order_from_json(const std::string& json);

// Not thread-safe. The tables outlive a save.
class Saves {
 public:
  explicit Saves(FileSystem& files) : files_(files) {}
  // All tables as they are now. Ends a save that is not complete. Throws io.
  void begin(const SaveOrder& order, const std::vector<Table*>& tables);
  void abandon() { saves_.clear(), at_ = 0, begun_ = false; }
  bool going_on() const { return at_ < saves_.size() && !failed_; }
  // Writes a little. False: there is nothing to write.
  bool go_on();
  // For the save that has begun: each table's chain with the new file; unset while it goes on. Throws the error that it failed with, and io
  // if none was begun.
  std::optional<std::vector<SavedTable>> written();
  // The same, and nothing of one that has failed.
  std::optional<std::vector<SavedTable>> tables_of_whole() { return failed_ ? std::nullopt : written(); }

 private:
  struct One {
    SavedTable chain;  // with one server's
    TableSave save;
  };
  void begin_all(const SaveOrder& order, const std::vector<Table*>& tables);

  FileSystem& files_;
  std::vector<One> saves_;
  std::size_t at_ = 0;
  bool begun_ = false;
  std::exception_ptr failed_;
};

// `tables` without those that `order.before` does not name. Throws Error(invalid_config) where one of these has rows: they are another
// run's, and would be lost. `place`: of the server, for what it says.
std::vector<Table*> tables_to_load(const SaveOrder& order, std::vector<Table*> tables, const std::string& place);
// Into tables that were opened and have no rows: the rows that this server has among `order.servers`, whichever servers have saved them.
// Throws as load_table() does; not_found where the folder has no such table.
void load_tables(const SaveOrder& order, const std::vector<Table*>& tables);

}  // namespace tessera::ps
