// internal: a random order of 0 .. size-1 that needs no memory: a Feistel network with cycle walking (Black and Rogaway 2002).
#pragma once

#include <array>
#include <cstdint>

namespace tessera::data {

// Value type; the same seed gives the same order on every machine. at() takes constant expected time.
class Permutation {
 public:
  // size > 0.
  Permutation(std::uint64_t size, std::uint64_t seed);
  // The element at `index` < size. Every element has exactly one index.
  std::uint64_t at(std::uint64_t index) const;

 private:
  static constexpr int kRounds = 8;
  std::uint64_t size_;
  int half_bits_;
  std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace tessera::data
