// Internal. What a server keeps in files, so that one that begins anew at its place holds all that was acknowledged: its tables at some
// moment (a base), and the messages that have changed them since, in their order.
//
// NUMBER.log are records of messages; of a base, NUMBER/ has the tables' rows, and the first records of NUMBER.log all else that the server
// held. A base counts once NUMBER/tables.json is there; what is older goes then.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/file_system.hpp"
#include "ps/saves.hpp"
#include "ps/server.hpp"
#include "ps/shards.hpp"

namespace tessera::ps {

// Messages as records of a file, behind those that it has. A process that is killed leaves what it has appended. Not thread-safe.
class RecordFile {
 public:
  // `bytes`: of the records that are there. What stands behind them goes.
  RecordFile(const std::filesystem::path& path, std::int64_t bytes);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // Throws io with nothing appended.
  void append(std::span<const std::byte> message);
  std::int64_t bytes() const { return bytes_; }

 private:
  void cut();

  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
  bool torn_ = false;  // half of a record stands behind them
};

// Not thread-safe.
class WriteAheadLog {
 public:
  // Makes the folder where it is missing. Throws invalid_config where another process writes to it.
  explicit WriteAheadLog(const ServerLog& options);
  ~WriteAheadLog();
  WriteAheadLog(const WriteAheadLog&) = delete;
  WriteAheadLog& operator=(const WriteAheadLog&) = delete;

  // Gives these, which hold nothing, what the last process at this place has acknowledged. `take` is given each message. Throws what it
  // throws, corrupt for files that are damaged or missing, io, and not_found where the files of a checkpoint that was loaded are gone.
  using Take = std::function<void(std::span<const std::byte> message)>;
  void restore(Shards& shards, const Take& take);
  // To be called before a message changes anything. Throws io with nothing written.
  void add(std::span<const std::byte> message);

  // The tables have come by other ways than messages: a base is due.
  void want_base() { wanted_ = number_; }
  // Writes a little of a base, or begins one that is due where no other snapshot of the tables is being made. False: there is nothing to
  // do.
  bool go_on(Shards& shards, bool other_snapshots);
  // Before another snapshot of the tables begins.
  void abandon_base() noexcept;

  // A save of all tables has begun, at this moment: its files are the next base, by hard links or, where the folders have none in common,
  // as copies.
  void begin_save(const Shards& shards);
  // What it has written, into this folder; nothing: it has failed, or was given up.
  void end_save(const std::filesystem::path& folder, const std::optional<std::vector<SavedTable>>& tables);

 private:
  // This process's alone.
  class Lock {
   public:
    explicit Lock(const std::filesystem::path& folder);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int descriptor_ = -1;
  };

  std::filesystem::path records_path(std::int64_t number) const;
  std::filesystem::path base_path(std::int64_t number) const;
  // A file of records that begins with what the server holds but for rows.
  void begin_records(const Shards& shards);
  void end_base(std::int64_t number, const std::vector<SavedTable>& tables);
  void remove_older(std::int64_t number);
  void remove_base(std::int64_t number) noexcept;
  void put_off();

  std::filesystem::path folder_;
  Lock lock_;
  std::int64_t least_bytes_;  // of records behind a base, before there is another one
  std::unique_ptr<RecordFile> records_ = {};
  std::int64_t number_ = 0;       // of the file of records
  std::int64_t behind_base_ = 0;  // bytes of records before that file
  std::int64_t base_bytes_ = 0;
  std::int64_t not_before_ = 0;              // bytes of records: a base has failed
  std::optional<std::int64_t> wanted_ = {};  // a base behind these records
  Saves base_{real_file_system()};
  std::optional<std::int64_t> writing_ = {};  // the number of a base of the log's own
  std::optional<std::int64_t> saving_ = {};   // of the save that goes on
  struct Copying {
    std::int64_t number;
    std::vector<SavedTable> tables;
    std::future<std::string> done;  // what has kept it from that; empty: nothing
  };
  std::optional<Copying> copying_ = {};
};

}  // namespace tessera::ps
