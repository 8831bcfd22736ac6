// The disk as an interface, so that checkpoints and tables can be tested against crashes, torn writes and full disks.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera {

// A file being written. Not thread-safe. The destructor closes without sync.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // Appends all of `data` or throws Error(io), naming the path.
  virtual void append(std::span<const std::byte> data) = 0;
  // Returns once the content is on the disk.
  virtual void sync() = 0;
  virtual void close() = 0;
};

// Every call throws Error(io or not_found) with the path when the operating system refuses. Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual std::unique_ptr<WritableFile> create(const std::filesystem::path& path) = 0;  // truncates
  virtual void rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual void sync_directory(const std::filesystem::path& path) = 0;
  virtual void create_directories(const std::filesystem::path& path) = 0;
  virtual void remove_all(const std::filesystem::path& path) = 0;
};

// The operating system's. One instance for the process; has no state.
FileSystem& real_file_system();

// Writes `path` whole or not at all: a temporary file beside it, sync, rename, sync of the folder.
void write_whole(FileSystem& files, const std::filesystem::path& path, std::span<const std::byte> content);
void write_whole(FileSystem& files, const std::filesystem::path& path, const std::string& content);

// The same for a file that a user named: creates the folders on the way to it.
void write_named(const std::filesystem::path& path, const std::string& content);

// Throws what write_named would: io where a folder on the way takes no files, or is none, or where `path` is a folder. For asking before
// long work whose result goes there.
void check_can_write(const std::filesystem::path& path);

// The whole file. Throws not_found or io.
std::string read_whole(const std::filesystem::path& path);

// A read-only memory map; empty files give an empty span. Movable. The span is valid while the object lives.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace tessera
