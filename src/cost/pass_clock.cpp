#include "cost/pass_clock.hpp"

#include <algorithm>
#include <limits>

#include "base/error.hpp"

namespace tessera::cost {
namespace {

// The exchanges of one link, in order.
struct Queue {
  std::vector<int> steps;
  std::size_t next = 0;
  double left = 0;
  bool holds() const { return next < steps.size(); }
};

}  // namespace

PlayedPass play(const program::BlockPass& pass, const std::vector<double>& computing, const std::vector<TimedExchange>& exchanges,
                double slowdown) {
  const auto end = pass.computing.size();
  const auto seconds_of = [&](std::size_t step) {
    const program::ComputeStep& of = pass.computing[step];
    return computing[of.op] / of.pieces;
  };
  PlayedPass out;
  std::array<Queue, kLinkStreams> links;
  std::vector<int> awaited(end + 1);  // exchanges that a step still waits for
  for (std::size_t e = 0; e < exchanges.size(); ++e) {
    links[static_cast<std::size_t>(exchanges[e].link)].steps.push_back(static_cast<int>(e));
    out.busy[static_cast<std::size_t>(exchanges[e].link)] += exchanges[e].seconds;
    ++awaited[pass.exchanges[e].before];
  }
  for (Queue& link : links)
    if (link.holds()) link.left = exchanges[link.steps.front()].seconds;
  std::size_t step = 0;
  double left = end > 0 ? seconds_of(0) : 0;
  while (step < end || links[0].holds() || links[1].holds()) {
    const bool computes = step < end && awaited[step] == 0;
    std::array<bool, kLinkStreams> runs = {};
    const TimedExchange* beside = nullptr;
    for (std::size_t l = 0; l < links.size(); ++l) {
      if (!links[l].holds()) continue;
      const int e = links[l].steps[links[l].next];
      runs[l] = pass.exchanges[e].after < static_cast<int>(step);
      if (runs[l] && beside == nullptr) beside = &exchanges[e];
    }
    const double rate = beside != nullptr ? 1 / (1 + slowdown) : 1;
    double passed = computes ? left / rate : std::numeric_limits<double>::infinity();
    for (std::size_t l = 0; l < links.size(); ++l)
      if (runs[l]) passed = std::min(passed, links[l].left);
    if (!computes && beside == nullptr) throw Error(ErrorCode::internal, text("step ", step, " of a block's pass waits for ever"));
    out.seconds += passed;
    if (beside != nullptr) out.exposed[static_cast<std::size_t>(beside->axis)] += computes ? passed * (1 - rate) : passed;
    for (std::size_t l = 0; l < links.size(); ++l) {
      Queue& link = links[l];
      if (!runs[l]) continue;
      link.left -= passed;
      if (link.left > 0) continue;
      --awaited[pass.exchanges[link.steps[link.next]].before];
      if (++link.next < link.steps.size()) link.left = exchanges[link.steps[link.next]].seconds;
    }
    if (!computes) continue;
    left -= passed * rate;
    // The sum of the parts may miss the whole by a rounding.
    constexpr double kRounding = 1e-12;
    if (left > kRounding * passed) continue;
    if (++step < end) left = seconds_of(step);
  }
  return out;
}

double added_beside(double exchange, double free, double slowdown) {
  return std::max(exchange * slowdown / (1 + slowdown), exchange - free);
}

}  // namespace tessera::cost
