#include "data/permutation.hpp"

#include <algorithm>
#include <bit>

#include "base/random.hpp"

namespace tessera::data {

Permutation::Permutation(std::uint64_t size, std::uint64_t seed)
    : size_(size), half_bits_(std::max(1, (static_cast<int>(std::bit_width(size - 1)) + 1) / 2)) {
  Random random(seed);
  for (std::uint64_t& key : keys_) key = random.next();
}

std::uint64_t Permutation::at(std::uint64_t index) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  // The network permutes a power of four that is less than four times the size; walk until it leads back inside.
  do {
    std::uint64_t left = index >> half_bits_, right = index & mask;
    for (std::uint64_t key : keys_) {
      const std::uint64_t mixed = left ^ (Random(key ^ right).next() & mask);
      left = right;
      right = mixed;
    }
    index = left << half_bits_ | right;
  } while (index >= size_);
  return index;
}

}  // namespace tessera::data
