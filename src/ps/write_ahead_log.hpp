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
#include <memory>
#include <span>
#include <vector>

#include "base/file_system.hpp"
#include "ps/saves.hpp"
#include "ps/server.hpp"
#include "ps/shards.hpp"

namespace tessera::ps {

// Messages as records of a file. A process that is killed leaves what it has appended; a host that loses power may lose the last seconds.
// Not thread-safe.
class RecordFile {
 public:
  // Calls with each record of a file that is there. Behind the last whole one it ends: another process was killed in the midst of the next.
  using Visit = std::function<void(std::span<const std::byte> message)>;
  RecordFile(const std::filesystem::path& path, const Visit& visit);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // Throws io with nothing appended.
  void append(std::span<const std::byte> message);
  std::int64_t bytes() const { return bytes_; }
  // Something stood behind the last whole record.
  bool was_cut() const { return was_cut_; }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
  std::int64_t bytes_ = 0;
  bool was_cut_ = false;
};

// Not thread-safe.
class WriteAheadLog {
 public:
  // Makes the folder where it is missing. Throws invalid_config where another process writes to it.
  explicit WriteAheadLog(const ServerLog& options);
  ~WriteAheadLog();
  WriteAheadLog(const WriteAheadLog&) = delete;
  WriteAheadLog& operator=(const WriteAheadLog&) = delete;

  // Gives these, which hold nothing, what the last process at this place has acknowledged. `take` is given each message, and may throw what
  // it threw there. Throws corrupt, io, and not_found where a base or a checkpoint that was loaded is gone.
  void restore(Shards& shards, const RecordFile::Visit& take);
  // To be called before a message changes anything. Throws io with nothing written.
  void add(std::span<const std::byte> message);

  // A base is due: the tables have come by other ways than messages, or there are many of these.
  void want_base() { wanted_ = true; }
  // Writes a little of a base, or begins one that is due where no other snapshot of the tables is being made. False: there is nothing to
  // do.
  bool go_on(Shards& shards, bool other_snapshots);
  // Before another snapshot of the tables begins.
  void abandon_base();

 private:
  std::filesystem::path records_path(std::int64_t number) const;
  std::filesystem::path base_path(std::int64_t number) const;
  void begin_base(Shards& shards);
  void end_base();

  std::filesystem::path folder_;
  int lock_ = -1;
  std::int64_t least_bytes_;  // of records behind a base, before there is another one
  std::unique_ptr<RecordFile> records_ = {};
  std::int64_t number_ = 0;       // of the file of records
  std::int64_t behind_base_ = 0;  // bytes of records before that file
  std::int64_t base_bytes_ = 0;
  bool wanted_ = false;
  Saves base_{real_file_system()};
  bool going_on_ = false;  // a base is being written
};

}  // namespace tessera::ps
