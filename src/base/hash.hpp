// Checksums (XXH3) of bytes: fast, not cryptographic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

std::uint64_t hash64(std::span<const std::byte> data, std::uint64_t seed = 0);
std::uint64_t hash64(std::string_view data, std::uint64_t seed = 0);
// 32 lower-case hex digits of XXH3-128: what stands in checkpoints and cache names.
std::string hash128_hex(std::span<const std::byte> data);
std::string hash128_hex(std::string_view data);

// Mixes numbers into one well-spread seed, the same on every machine: seed_of(seed, epoch), seed_of(seed, step, sample, block).
std::uint64_t seed_of(std::uint64_t a, std::uint64_t b, std::uint64_t c = 0, std::uint64_t d = 0);

}  // namespace tessera
