// internal: items into classes of limited room, at the least cost.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::train {

// The class of each item, so that class c takes at most room[c] of them and the sum of costs[item][class] is the least there is: by
// successive shortest paths through the classes (Ahuja, Magnanti, Orlin, Network Flows, 1993, section 9.7). The same on every machine.
// There must be room for all. O(items^2 classes + items classes^3), and far less where few items move twice.
std::vector<int> assign(const std::vector<std::vector<std::int64_t>>& costs, const std::vector<std::int64_t>& room);

}  // namespace tessera::train
