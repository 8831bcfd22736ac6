// The token stream of a source in one memory-mapped file.
//
// Layout, all numbers little-endian:
//   header, 64 bytes    "TSRTOKEN", u32 version 2, u32 bytes per token (2 or 4), u64 vocabulary, 32 hex digits of fingerprint,
//                       u64 XXH3 of the 56 bytes before
//   tokens              u16 or u32 each, then zeros up to a multiple of 8
//   document ends       u64 each: the index of the token behind a document and its end-of-text token
//   text begins         u64 each: the index of a document's first token behind its prompt; where there is none, the document's first
//   block checksums     u64 XXH3 of each MiB of the tokens' bytes (the last block may be shorter; without the zeros)
//   footer, 72 bytes    "TSRTKEND", u64 tokens, u64 documents, u64 blocks, u64 skipped records, u64 XXH3 of document ends, text begins and
//                       block checksums, u64 file size, u64 the header's checksum, u64 XXH3 of the 64 bytes before
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/file_system.hpp"

namespace tessera::data {

// Writes a cache under a temporary name and renames it when it is whole; an unfinished one is removed. Not thread-safe.
class TokenCacheWriter {
 public:
  // Every token must be below `vocab`. `fingerprint` is 32 hex digits. Throws io.
  TokenCacheWriter(FileSystem& files, const std::filesystem::path& path, std::int64_t vocab, const std::string& fingerprint);
  ~TokenCacheWriter();
  void append(std::span<const std::uint32_t> tokens);
  // The document's tokens so far are its prompt.
  void end_prompt();
  // The tokens since the last call are one document.
  void end_document();
  // Makes the file appear at its path. `skipped` records of the source are not in it.
  void finish(std::uint64_t skipped = 0);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Reads a cache. Header, footer and index are checked on opening, each block of tokens before it is used for the first time; so
// truncation and flipped bits are errors, never wrong tokens. Thread-safe.
class TokenCache {
 public:
  // Throws not_found, and corrupt when the file is truncated or damaged or (if `fingerprint` is not empty) was made of something else.
  explicit TokenCache(const std::filesystem::path& path, const std::string& fingerprint = {});
  ~TokenCache();
  TokenCache(TokenCache&&) noexcept;

  std::int64_t size() const;  // tokens
  std::int64_t vocab() const;
  std::int64_t document_count() const;
  const std::string& fingerprint() const;
  // Identifies the tokens, and where documents and prompts end.
  std::uint64_t content_hash() const;
  const std::filesystem::path& path() const;
  // The tokens [document_begin(i), document_begin(i + 1)) are document i with its end-of-text token; i may be document_count().
  std::int64_t document_begin(std::int64_t index) const;
  // The first token of document `index` that is not of its prompt.
  std::int64_t text_begin(std::int64_t index) const;
  // The document that holds a token of the cache. Logarithmic.
  std::int64_t document_of(std::int64_t token) const;
  // Records of the source that could not be read and were left out.
  std::int64_t skipped() const;
  // Tokens [first, first + out.size()), which must lie inside. Throws corrupt.
  void read(std::int64_t first, std::span<std::int32_t> out) const;
  // Checks all blocks. Throws corrupt.
  void verify() const;

  static bool is_cache(const std::filesystem::path& path);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::data
