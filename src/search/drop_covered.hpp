// Internal to the search over blocks.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

namespace tessera::search {

// Keeps the items that no kept item before them covers: covers(a, b) says whether `a` is as good as `b` in every respect.
template <typename Item, typename Covers>
void drop_covered(std::vector<Item>& items, const Covers& covers) {
  std::vector<Item> kept;
  for (const Item& item : items)
    if (std::none_of(kept.rbegin(), kept.rend(), [&](const Item& other) { return covers(other, item); })) kept.push_back(item);
  items = std::move(kept);
}

}  // namespace tessera::search
