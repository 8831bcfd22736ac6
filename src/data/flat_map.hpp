// internal: a hash table from 64-bit keys to small values for the inner loops of the tokenizers (linear probing; no erase).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera::data {

template <typename Value>
class FlatMap {
 public:
  static constexpr std::uint64_t kEmpty = ~0ull;  // not usable as a key

  const Value* find(std::uint64_t key) const {
    if (slots_.empty()) return nullptr;
    for (std::size_t index = place(key);; index = (index + 1) & mask()) {
      if (slots_[index].key == key) return &slots_[index].value;
      if (slots_[index].key == kEmpty) return nullptr;
    }
  }
  // The value of `key`, a new default one if there was none. Invalidates what find returned.
  Value& operator[](std::uint64_t key) {
    if ((size_ + 1) * 2 > slots_.size()) grow();
    std::size_t index = place(key);
    while (slots_[index].key != key && slots_[index].key != kEmpty) index = (index + 1) & mask();
    if (slots_[index].key == kEmpty) {
      slots_[index].key = key;
      ++size_;
    }
    return slots_[index].value;
  }
  std::size_t size() const { return size_; }
  template <typename Visit>
  void for_each(Visit visit) const {
    for (const Slot& slot : slots_) {
      if (slot.key != kEmpty) visit(slot.key, slot.value);
    }
  }

 private:
  struct Slot {
    std::uint64_t key = kEmpty;
    Value value{};
  };
  std::size_t mask() const { return slots_.size() - 1; }
  std::size_t place(std::uint64_t key) const { return static_cast<std::size_t>((key * 0x9E3779B97F4A7C15ull) >> 20) & mask(); }
  void grow() {
    std::vector<Slot> old(slots_.empty() ? 16 : slots_.size() * 2);
    old.swap(slots_);
    for (Slot& slot : old) {
      if (slot.key == kEmpty) continue;
      std::size_t index = place(slot.key);
      while (slots_[index].key != kEmpty) index = (index + 1) & mask();
      slots_[index] = std::move(slot);
    }
  }

  std::vector<Slot> slots_;
  std::size_t size_ = 0;
};

}  // namespace tessera::data
