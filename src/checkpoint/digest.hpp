// XXH3-128 as 32 lower-case hex digits, the same as base's hash128_hex gives; also of bytes that come in chunks.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace tessera::checkpoint {

std::string digest_of(std::span<const std::byte> data);

class Digest {
 public:
  Digest();
  ~Digest();
  void add(std::span<const std::byte> data);
  // The digest of everything added since the last reset.
  std::string hex() const;
  void reset();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera::checkpoint
