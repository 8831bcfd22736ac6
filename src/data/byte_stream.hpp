// internal: the content of a file, decompressed where the file is compressed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "data/source.hpp"

namespace tessera::data {

// Not thread-safe.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // The next piece of the content, valid until the next call; empty at the end. Throws corrupt when the file is damaged or cut off.
  virtual std::string_view next() = 0;
  // About how many bytes of the file hold the first `content` bytes of the pieces so far; never falls.
  virtual std::uint64_t file_position(std::uint64_t content) const = 0;
};

// Throws io.
std::unique_ptr<ByteStream> open_bytes(const SourceFile& file);

}  // namespace tessera::data
