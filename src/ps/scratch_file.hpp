// Internal. A file without a name, which is gone when its process is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace tessera::ps {

// Reads and writes may come from several threads. All throw Error(io) with the folder when the system refuses.
class ScratchFile {
 public:
  // In `folder`, which is made where it is missing.
  explicit ScratchFile(const std::filesystem::path& folder);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  void write(std::uint64_t offset, std::span<const std::byte> bytes) const;
  void read(std::uint64_t offset, std::span<std::byte> bytes) const;
  // False where that would have to wait for the disk; then the system has been asked to fetch the bytes.
  bool read_now(std::uint64_t offset, std::span<std::byte> bytes) const;

  // Whether it is mapped up to there.
  bool maps(std::uint64_t end) const { return end <= mapped_bytes_; }
  // Maps all that is written below `end`, for one thread that calls this while no other uses at(); false where the system maps no such
  // file.
  bool map(std::uint64_t end);
  // Precondition: map() of what comes behind it was true. Valid until the next map(). Waits for what the system no longer holds in memory,
  // and if the disk does not give that back, the process ends with SIGBUS.
  const std::byte* at(std::uint64_t offset) const { return mapped_ + offset; }

 private:
  std::filesystem::path folder_;
  int descriptor_ = -1;
  std::byte* mapped_ = nullptr;
  std::uint64_t mapped_bytes_ = 0;
};

// How often this thread waited for the disk because mapped bytes were not in memory.
std::int64_t major_faults();

}  // namespace tessera::ps
