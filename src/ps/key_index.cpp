#include "ps/key_index.hpp"

#include <memory>
#include <new>

#include "base/error.hpp"

namespace tessera::ps {

KeyIndex::KeyIndex() : pages_(sizeof(Segment)) {
  static_assert(sizeof(Segment) == 64 << 10);
  directory_.push_back(new (pages_.take()) Segment);  // pages are zeroed: no slot is used
}

KeyIndex::Slot KeyIndex::slot_of(Key key) const {
  const std::uint64_t hash = hash_of(key);
  Segment& segment = *directory_[directory_place(hash)];
  std::size_t place = home_of(hash);
  for (std::size_t step = 0; step < kMostSteps; ++step) {
    Line& line = segment.lines[place];
    if (const int number = slot_of(line, key); number >= 0) return {&line, number};
    if (!line.passed) break;
    if (++place == kLines) place = 0;
  }
  return {};
}

std::uint32_t KeyIndex::find(Key key) const {
  const Slot slot = slot_of(key);
  return slot.line == nullptr ? kNone : slot.line->rows[slot.number];
}

std::uint32_t KeyIndex::erase(Key key) {
  const Slot slot = slot_of(key);
  if (slot.line == nullptr) return kNone;
  slot.line->used &= ~(1u << slot.number);
  --size_;
  return slot.line->rows[slot.number];
}

bool KeyIndex::add(Segment& segment, Key key, std::uint64_t hash, std::uint32_t row) {
  std::size_t place = home_of(hash);
  for (std::size_t step = 0; step < kMostSteps; ++step) {
    Line& line = segment.lines[place];
    const unsigned free = ~static_cast<unsigned>(line.used) & ((1u << kSlots) - 1);
    if (free != 0) {
      const int slot = __builtin_ctz(free);
      line.keys[slot] = key;
      line.rows[slot] = row;
      line.used |= 1u << slot;
      return true;
    }
    line.passed = true;
    if (++place == kLines) place = 0;
  }
  return false;
}

void KeyIndex::place(Key key, std::uint64_t hash, std::uint32_t row) {
  while (!add(*directory_[directory_place(hash)], key, hash, row)) split(hash);
}

void KeyIndex::insert(Key key, std::uint32_t row) {
  place(key, hash_of(key), row);
  ++size_;
}

void KeyIndex::replace(Key key, std::uint32_t row) {
  const Slot slot = slot_of(key);
  ensure(slot.line != nullptr, "a key whose row is replaced has one");
  slot.line->rows[slot.number] = row;
}

void KeyIndex::split(std::uint64_t hash) {
  Segment* const full = directory_[directory_place(hash)];
  Segment* const other = new (pages_.take()) Segment;
  if (full->depth == depth_) {
    std::vector<Segment*> doubled(directory_.size() * 2);
    for (std::size_t place = 0; place < doubled.size(); ++place) doubled[place] = directory_[place / 2];
    directory_ = std::move(doubled);
    ++depth_;
  }
  full->depth = other->depth = full->depth + 1;
  // The segment's places are neighbours; the upper half of them is the new one's.
  const std::size_t places = std::size_t{1} << (depth_ - full->depth);
  const std::size_t first = directory_place(hash) / (2 * places) * (2 * places);
  for (std::size_t place = first + places; place < first + 2 * places; ++place) directory_[place] = other;
  const auto lines = std::make_unique<std::array<Line, kLines>>(full->lines);
  full->lines = {};
  for (const Line& line : *lines)
    for (int slot = 0; slot < kSlots; ++slot)
      if ((line.used >> slot & 1) != 0) place(line.keys[slot], hash_of(line.keys[slot]), line.rows[slot]);
}

std::size_t KeyIndex::used(const Segment& segment) {
  std::size_t count = 0;
  for (const Line& line : segment.lines) count += static_cast<std::size_t>(__builtin_popcount(line.used));
  return count;
}

void KeyIndex::join(std::uint64_t hash) {
  for (;;) {
    Segment* const upper = directory_[directory_place(hash)];
    if (upper->depth == 0) return;
    const std::uint64_t bit = std::uint64_t{1} << (64 - upper->depth);
    Segment* const lower = directory_[directory_place(hash ^ bit)];
    if ((hash & bit) == 0 || lower->depth != upper->depth || used(*lower) + used(*upper) > kLines * kSlots / 2) return;
    --lower->depth;
    const std::size_t places = std::size_t{1} << (depth_ - upper->depth), first = directory_place(hash) / places * places;
    for (std::size_t place = first; place < first + places; ++place) directory_[place] = lower;
    for (const Line& line : upper->lines)
      for (int slot = 0; slot < kSlots; ++slot)
        if ((line.used >> slot & 1) != 0) place(line.keys[slot], hash_of(line.keys[slot]), line.rows[slot]);
    pages_.give_back(reinterpret_cast<std::byte*>(upper));
    hash &= ~bit;
  }
}

template <typename Visit>
void KeyIndex::for_segments(HashRange range, const Visit& visit) const {
  for (std::uint64_t hash = range.first;;) {
    Segment& segment = *directory_[directory_place(hash)];
    const std::uint64_t rest = segment.depth == 0 ? ~std::uint64_t{0} : ~std::uint64_t{0} >> segment.depth, last = hash | rest;
    visit(segment, hash & ~rest);  // which may split or join it
    if (last >= range.last) return;
    hash = last + 1;
  }
}

void KeyIndex::for_each(HashRange range, const std::function<void(Key, std::uint32_t)>& visit) const {
  for_segments(range, [&](const Segment& segment, std::uint64_t) {
    for (const Line& line : segment.lines)
      for (int slot = 0; slot < kSlots; ++slot)
        if ((line.used >> slot & 1) != 0 && range.has(hash_of(line.keys[slot]))) visit(line.keys[slot], line.rows[slot]);
  });
}

void KeyIndex::erase_if(HashRange range, const std::function<bool(Key, std::uint32_t)>& leaves) {
  const auto lines = std::make_unique<std::array<Line, kLines>>();
  for_segments(range, [&](Segment& segment, std::uint64_t first) {
    *lines = segment.lines;
    segment.lines = {};
    for (const Line& line : *lines)
      for (int slot = 0; slot < kSlots; ++slot) {
        if ((line.used >> slot & 1) == 0) continue;
        const Key key = line.keys[slot];
        const std::uint64_t hash = hash_of(key);
        if (range.has(hash) && leaves(key, line.rows[slot]))
          --size_;
        else
          place(key, hash, line.rows[slot]);
      }
    join(first);
  });
}

}  // namespace tessera::ps
