// Internal: queues of transfers that share links evenly while they are active together.
#pragma once

#include <set>
#include <utility>
#include <vector>

namespace tessera::cost {

struct FluidItem {
  double ready = 0;
  double duration = 0;  // with the sharing within its own queue
  double end = 0;       // filled in
};

// Items of a queue go one at a time, in order.
struct FluidQueue {
  std::vector<FluidItem> items;
  double weight = 1;        // how many transfers are active at once for each item
  double beside_until = 0;  // until then its ranks compute, and its items take `slowed` times as long
  double slowed = 1;
  std::set<std::pair<int, int>> nodes;  // (group, node) whose shared link it uses; empty: a link of its own
};

// Fills in when each item ends. An item that waits for another queue has the later `ready` of both.
void run_fluid(std::vector<FluidQueue>& queues);

}  // namespace tessera::cost
