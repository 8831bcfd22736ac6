// Internal. A file of blocks, each with a checksum that also knows its place in the file and all blocks before it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/file_system.hpp"

namespace tessera::ps {

// `head`: JSON that says what the file is. `erased`: keys. `rows`: keys, then their rows as Table stores them. `end`: nothing, and nothing
// follows. `waiting`: of a table with a lifecycle, Table::waiting() in `count` bytes.
enum class BlockKind : std::uint32_t { head, erased, rows, end, waiting };

struct BlockHead {
  BlockKind kind;
  std::uint32_t count;
  std::uint64_t bytes;
};
static_assert(sizeof(BlockHead) == 16);

class BlockWriter {
 public:
  BlockWriter(FileSystem& files, const std::filesystem::path& path) : file_(files.create(path)) {}
  void add(BlockKind kind, std::size_t count, std::span<const std::byte> content);
  void finish();
  // The last block's checksum, which stands for the whole.
  std::uint64_t checksum() const { return checksum_; }

 private:
  std::unique_ptr<WritableFile> file_;
  std::uint64_t checksum_ = 0;
  std::size_t unsynced_ = 0;
};

class BlockReader {
 public:
  explicit BlockReader(std::filesystem::path path) : path_(std::move(path)), file_(path_), left_(file_.bytes()) {}

  struct Block {
    BlockKind kind;
    std::size_t count;
    std::span<const std::byte> content;
  };
  // Throws Error(corrupt) where the checksum says so or the file ends before its end block. Not to be called after that.
  Block next();
  std::uint64_t checksum() const { return checksum_; }
  // For what stands in a block and cannot be.
  [[noreturn]] void refuse(const std::string& what) const;

 private:
  std::filesystem::path path_;
  MappedFile file_;
  std::span<const std::byte> left_;
  std::uint64_t checksum_ = 0;
};

}  // namespace tessera::ps
