#include "cost/fluid.hpp"

#include <algorithm>
#include <limits>

namespace tessera::cost {
namespace {

bool meet(const FluidQueue& a, const FluidQueue& b) {
  return std::any_of(a.nodes.begin(), a.nodes.end(), [&](const auto& node) { return b.nodes.contains(node); });
}

}  // namespace

void run_fluid(std::vector<FluidQueue>& queues) {
  const std::size_t count = queues.size();
  std::vector<std::size_t> next(count, 0);
  std::vector<double> left(count, 0);
  std::vector<bool> active(count, false);
  double now = 0;
  for (;;) {
    double wake = std::numeric_limits<double>::infinity();
    bool any = false;
    for (std::size_t q = 0; q < count; ++q) {
      while (!active[q] && next[q] < queues[q].items.size() && queues[q].items[next[q]].ready <= now) {
        left[q] = queues[q].items[next[q]].duration;
        active[q] = left[q] > 0;
        if (!active[q]) queues[q].items[next[q]++].end = now;
      }
      any = any || active[q];
      if (!active[q] && next[q] < queues[q].items.size()) wake = std::min(wake, queues[q].items[next[q]].ready);
    }
    if (!any && wake == std::numeric_limits<double>::infinity()) return;
    std::vector<double> rate(count, 0);
    double step = wake - now;
    for (std::size_t q = 0; q < count; ++q) {
      if (!active[q]) continue;
      double users = queues[q].weight;
      for (std::size_t other = 0; other < count; ++other)
        if (other != q && active[other] && meet(queues[q], queues[other])) users += queues[other].weight;
      rate[q] = queues[q].weight / users;
      if (now < queues[q].beside_until) {
        rate[q] /= queues[q].slowed;
        step = std::min(step, queues[q].beside_until - now);
      }
      step = std::min(step, left[q] / rate[q]);
    }
    now += step;
    for (std::size_t q = 0; q < count; ++q) {
      if (!active[q]) continue;
      left[q] -= step * rate[q];
      if (left[q] > 1e-12 * queues[q].items[next[q]].duration) continue;
      active[q] = false;
      queues[q].items[next[q]++].end = now;
    }
  }
}

}  // namespace tessera::cost
