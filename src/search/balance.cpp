#include "search/balance.hpp"

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera::search {

std::vector<int> balance(const std::vector<double>& costs, int stages) {
  using Value = std::pair<double, double>;  // most expensive stage, sum of squares
  const int blocks = static_cast<int>(costs.size());
  std::vector<double> sum(blocks + 1, 0);
  for (int b = 0; b < blocks; ++b) sum[b + 1] = sum[b] + costs[b];
  const Value never{std::numeric_limits<double>::infinity(), 0};
  // best[b]: the first b blocks in the stages so far.
  std::vector<Value> best(blocks + 1, never);
  best[0] = {0, 0};
  std::vector<std::vector<int>> from(stages + 1, std::vector<int>(blocks + 1, 0));
  for (int s = 1; s <= stages; ++s) {
    std::vector<Value> next(blocks + 1, never);
    for (int b = s; b + (stages - s) <= blocks; ++b) {
      for (int a = b - 1; a >= s - 1; --a) {
        const double stage = sum[b] - sum[a];
        if (stage > next[b].first) break;
        const Value value{std::max(best[a].first, stage), best[a].second + stage * stage};
        if (value < next[b]) {
          next[b] = value;
          from[s][b] = a;
        }
      }
    }
    best = std::move(next);
  }
  std::vector<int> cuts(stages + 1, blocks);
  for (int s = stages; s > 0; --s) cuts[s - 1] = from[s][cuts[s]];
  return cuts;
}

std::vector<std::vector<int>> all_cuts(int blocks, int stages, int most) {
  double count = 1;
  for (int i = 1; i < stages; ++i) count = count * (blocks - i) / i;
  if (count > most) return {};
  std::vector<std::vector<int>> out;
  std::vector<int> cuts(stages + 1);
  for (int s = 0; s < stages; ++s) cuts[s] = s;
  cuts[stages] = blocks;
  for (;;) {
    out.push_back(cuts);
    // The next combination: the last boundary that can still move, and those behind it as close as they can be.
    int s = stages - 1;
    while (s > 0 && cuts[s] == blocks - stages + s) --s;
    if (s <= 0) return out;
    ++cuts[s];
    for (int behind = s + 1; behind < stages; ++behind) cuts[behind] = cuts[behind - 1] + 1;
  }
}

}  // namespace tessera::search
