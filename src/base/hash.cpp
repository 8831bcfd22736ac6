#include "base/hash.hpp"

#include <xxhash.h>
#include <cstdio>

#include "base/random.hpp"

namespace tessera {

std::uint64_t hash64(std::span<const std::byte> data, std::uint64_t seed) { return XXH3_64bits_withSeed(data.data(), data.size(), seed); }
std::uint64_t hash64(std::string_view data, std::uint64_t seed) { return XXH3_64bits_withSeed(data.data(), data.size(), seed); }

std::string hash128_hex(std::span<const std::byte> data) {
  const XXH128_hash_t hash = XXH3_128bits(data.data(), data.size());
  char buffer[33];
  std::snprintf(buffer, sizeof buffer, "%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                static_cast<unsigned long long>(hash.low64));
  return buffer;
}

std::string hash128_hex(std::string_view data) { return hash128_hex(std::as_bytes(std::span(data.data(), data.size()))); }

std::uint64_t seed_of(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) {
  std::uint64_t seed = 0x7465737365726121ull;
  for (std::uint64_t part : {a, b, c, d}) seed = Random(seed ^ part).next();
  return seed;
}

}  // namespace tessera
