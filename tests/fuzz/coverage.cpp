#include "fuzz/coverage.hpp"

#include <array>
#include <bit>
#include <cstdint>

namespace {

constexpr std::size_t kSlots = 1 << 16;
// One process, one thread; the hook below can be given no context.
std::array<std::uint8_t, kSlots> counts;
std::array<std::uint8_t, kSlots> seen;  // a bit for each power of two
std::uintptr_t previous = 0;
bool called = false;

}  // namespace

// Called by instrumented code. Positions are taken relative to this function, which makes them the same in every run.
extern "C" void __sanitizer_cov_trace_pc() {
  const std::uintptr_t here =
      reinterpret_cast<std::uintptr_t>(__builtin_return_address(0)) - reinterpret_cast<std::uintptr_t>(&__sanitizer_cov_trace_pc);
  const std::uintptr_t mixed = here * 0x9E3779B97F4A7C15ull >> 40;
  std::uint8_t& count = counts[(mixed ^ previous) % kSlots];
  if (count < 255) ++count;
  previous = mixed >> 1;
  called = true;
}

namespace tessera::fuzz {

bool sees_coverage() { return called; }

void begin_input() {
  counts.fill(0);
  previous = 0;
}

bool was_new() {
  bool fresh = false;
  for (std::size_t i = 0; i < kSlots; ++i) {
    if (counts[i] == 0) continue;
    const auto bit = static_cast<std::uint8_t>(1U << (std::bit_width(counts[i]) - 1));
    fresh |= (seen[i] & bit) == 0;
    seen[i] = static_cast<std::uint8_t>(seen[i] | bit);
  }
  return fresh;
}

std::size_t edges_seen() {
  std::size_t count = 0;
  for (const std::uint8_t bits : seen) count += bits != 0 ? 1 : 0;
  return count;
}

}  // namespace tessera::fuzz
