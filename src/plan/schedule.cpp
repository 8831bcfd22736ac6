#include "plan/schedule.hpp"

#include <algorithm>

namespace tessera::plan {

std::vector<Slot> order_of(Schedule schedule, int stage, int stage_count, int micro_batches) {
  const int ahead = schedule == Schedule::gpipe ? micro_batches : std::min(stage_count - stage - 1, micro_batches);
  std::vector<Slot> order;
  for (int m = 0; m < ahead; ++m) order.push_back({true, m});
  for (int m = ahead; m < micro_batches; ++m) {
    order.push_back({true, m});
    order.push_back({false, m - ahead});
  }
  for (int m = micro_batches - ahead; m < micro_batches; ++m) order.push_back({false, m});
  return order;
}

}  // namespace tessera::plan
