#include "ps/waiting_keys.hpp"

#include <algorithm>
#include <cstring>

#include "ps/key_index.hpp"

namespace tessera::ps {
namespace {

constexpr std::uint64_t kKeysOfALine = 24;  // of 32 slots: then one line in thirty is full

}  // namespace

WaitingKeys::WaitingKeys(std::uint64_t keys) : lines_((keys + kKeysOfALine - 1) / kKeysOfALine) {}

std::size_t WaitingKeys::line_of(std::uint64_t key) const {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::size_t>((static_cast<Wide>(hash_of(key)) * lines_.size()) >> 64);
}

WaitingKeys::Slot& WaitingKeys::slot_for(Line& line, Slot key_bits) {
  // Free slots are the least of all, then those that were not counted lately, then those that were counted seldom.
  Slot* least = &line.slots.front();
  for (Slot& slot : line.slots) {
    if ((slot & kKey) == key_bits && (slot & kCount) != 0) return slot;
    if ((slot & (kLately | kCount)) < (*least & (kLately | kCount))) least = &slot;
  }
  return *least;
}

bool WaitingKeys::admit(std::uint64_t key, unsigned times, unsigned enough) {
  if (enough <= 1) return true;
  // Bits that the place of the line does not depend on.
  const auto key_bits = static_cast<Slot>(hash_of(key) * 0x9E3779B97F4A7C15ull >> 48 & kKey);
  Slot& slot = slot_for(lines_[line_of(key)], key_bits);
  const bool known = (slot & kKey) == key_bits && (slot & kCount) != 0;
  const unsigned count = (known ? slot & kCount : 0u) + times;
  if (count >= enough) {
    if (known) slot = 0;
    return true;
  }
  slot = static_cast<Slot>(key_bits | kLately | count);
  return false;
}

void WaitingKeys::forget_old() {
  for (Line& line : lines_)
    for (Slot& slot : line.slots) slot = (slot & kLately) != 0 ? static_cast<Slot>(slot & ~kLately) : Slot{0};
}

void WaitingKeys::add(std::size_t first_line, std::span<const std::byte> lines) {
  for (std::size_t i = 0; i < lines.size() / kLineBytes && first_line + i < lines_.size(); ++i) {
    Line from;
    std::memcpy(&from, lines.data() + i * kLineBytes, kLineBytes);
    Line& line = lines_[first_line + i];
    // In the same order, so that a copy forgets what its original does.
    if (std::ranges::all_of(line.slots, [](Slot slot) { return slot == 0; })) {
      line = from;
      continue;
    }
    for (const Slot other : from.slots) {
      if ((other & kCount) == 0) continue;
      Slot& slot = slot_for(line, other & kKey);
      const auto worth = [](Slot one) { return one & (kLately | kCount); };
      const bool known = (slot & kKey) == (other & kKey) && (slot & kCount) != 0;
      if (known || worth(slot) < worth(other)) slot = static_cast<Slot>((other & kKey) | std::max(worth(slot), worth(other)));
    }
  }
}

}  // namespace tessera::ps
