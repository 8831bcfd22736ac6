// Internal. How often keys were seen that have no row yet, in little memory: a few bits of each key's hash and a small count.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::ps {

// A key's hash says its line of 64 bytes and 11 bits that tell it apart from others there. Full lines forget the key that was seen least.
class WaitingKeys {
 public:
  static constexpr unsigned kMostCount = 15;

  // Room for about so many; for none, admit() is not to be called.
  explicit WaitingKeys(std::uint64_t keys);

  void ask(std::uint64_t key) const {
    if (!lines_.empty()) __builtin_prefetch(&lines_[line_of(key)], 1);
  }
  // Counts `times` more. True: it was seen `enough` times, and is waited for no more. `enough`: 1 to kMostCount.
  bool admit(std::uint64_t key, unsigned times, unsigned enough);
  // Keys that were not counted since this was called last are forgotten.
  void forget_old();

  // What it knows, a multiple of kLineBytes.
  static constexpr std::size_t kLineBytes = 64;
  std::span<const std::byte> bytes() const { return std::as_bytes(std::span(lines_)); }
  // Adds what another one of as many keys knows, or some lines of it from the one with this number on; of a key that both know, the larger
  // count. One that knows nothing then is its copy. Lines that there cannot be are passed over.
  void add(std::size_t first_line, std::span<const std::byte> lines);

 private:
  // A slot of a line is 0, or: the key's 11 bits, whether it was counted lately, its count in 4 bits.
  using Slot = std::uint16_t;
  static constexpr Slot kCount = 15, kLately = 16, kKey = 0xFFE0;
  struct alignas(kLineBytes) Line {
    std::array<Slot, kLineBytes / sizeof(Slot)> slots;
  };

  std::size_t line_of(std::uint64_t key) const;
  // The slot with these bits of a key; else a free one, or the one to forget, without these bits.
  static Slot& slot_for(Line& line, Slot key_bits);

  std::vector<Line> lines_;
};

}  // namespace tessera::ps
