// A disk that loses power at a chosen operation.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/file_system.hpp"
#include "base/random.hpp"

namespace tessera::checkpoint {

// Not an Error on purpose: a process that lost its power runs no clean-up.
struct PowerLoss {};

// Passes everything on to the real file system and counts the operations; the one with number `lose_at` (0-based) does not
// happen any more, and throws PowerLoss, as does every later one. lose_unsynced() then does to the folder what such an end may
// do: of a file, bytes that were not synced are partly missing, or are garbage; names and renames in a folder that was not synced may be
// gone. What was synced stays.
class CrashingFileSystem final : public FileSystem {
 public:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  explicit CrashingFileSystem(std::int64_t lose_at = kNever) : lose_at_(lose_at) {}

  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override;
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  void sync_directory(const std::filesystem::path& path) override;
  void create_directories(const std::filesystem::path& path) override;
  void remove_all(const std::filesystem::path& path) override;

  std::int64_t operations() const { return operations_; }
  const std::string& last_operation() const { return last_operation_; }
  void lose_unsynced(Random& random);

 private:
  class File;
  struct Rename {
    std::filesystem::path from;
    std::filesystem::path to;
  };

  void begin(const std::string& operation);
  void forget(const std::filesystem::path& path);

  std::int64_t lose_at_;
  std::int64_t operations_ = 0;
  std::string last_operation_;
  std::map<std::filesystem::path, std::uint64_t> synced_bytes_;  // of files with unsynced content
  std::vector<std::filesystem::path> unsynced_names_;            // files whose folder was not synced since
  std::vector<Rename> unsynced_renames_;
};

}  // namespace tessera::checkpoint
