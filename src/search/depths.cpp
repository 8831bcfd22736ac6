#include "search/depths.hpp"

#include <algorithm>
#include <array>

#include "plan/schedule/schedule.hpp"

namespace tessera::search {
namespace {

// Of the busiest pipeline rank; squares of all ranks, and of all stages, summed.
using Unevenness = std::array<double, 3>;

// Figures that differ by less are equal.
constexpr double kAlike = 1e-12;

bool less(const Unevenness& a, const Unevenness& b) {
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] < b[i] * (1 - kAlike))
      return true;
    else if (a[i] > b[i] * (1 + kAlike))
      return false;
  return false;
}

}  // namespace

int Placement::rank_of(int stage) const { return plan::is_v_shaped(schedule) && stage >= ranks ? 2 * ranks - 1 - stage : stage % ranks; }

std::vector<int> even_cuts(int blocks, int stages) {
  std::vector<int> out = {0};
  for (int s = 0; s < stages; ++s) out.push_back(out.back() + blocks / stages + (s < blocks % stages ? 1 : 0));
  return out;
}

std::vector<int> even_inner_cuts(int blocks, int stages) {
  std::vector<int> out = even_cuts(blocks - 2, stages);
  for (std::size_t s = 1; s < out.size(); ++s) ++out[s];
  ++out.back();
  return out;
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

std::vector<std::vector<int>> moves_from(const std::vector<int>& cuts, const Placement& placement, int rank) {
  std::vector<std::vector<int>> out;
  for (int from = 0; from < placement.stages(); ++from) {
    if (placement.rank_of(from) != rank || cuts[from + 1] - cuts[from] < 2) continue;
    for (int to = 0; to < placement.stages(); ++to) {
      if (to == from) continue;
      std::vector<int>& moved = out.emplace_back(cuts);
      for (int s = std::min(from, to) + 1; s <= std::max(from, to); ++s) moved[s] += from < to ? -1 : 1;
    }
  }
  return out;
}

std::vector<int> balanced_cuts(const std::vector<double>& seconds, double message, const std::vector<double>& speeds,
                               const Placement& placement) {
  std::vector<double> sums = {0};  // of the blocks before each
  for (const double each : seconds) sums.push_back(sums.back() + each);
  const auto of_stage = [&](const std::vector<int>& cuts, int stage) { return sums[cuts[stage + 1]] - sums[cuts[stage]]; };
  const auto by_rank = [&](const std::vector<int>& cuts) {
    std::vector<double> out(placement.ranks, 0.0);
    for (int s = 0; s < placement.stages(); ++s) {
      const int rank = placement.rank_of(s);
      const bool sends = s + 1 < placement.stages() && rank != placement.rank_of(s + 1);
      out[rank] += of_stage(cuts, s) / speeds[rank] + (sends ? message : 0);
    }
    return out;
  };
  const auto unevenness = [&](const std::vector<int>& cuts) {
    Unevenness out{};
    for (const double busy : by_rank(cuts)) {
      out[0] = std::max(out[0], busy);
      out[1] += busy * busy;
    }
    for (int s = 0; s < placement.stages(); ++s) out[2] += of_stage(cuts, s) * of_stage(cuts, s);
    return out;
  };
  std::vector<int> best = even_cuts(static_cast<int>(seconds.size()), placement.stages());
  for (bool better = true; better;) {
    better = false;
    const std::vector<double> busy = by_rank(best);
    Unevenness least = unevenness(best);
    for (std::vector<int>& moved : moves_from(best, placement, static_cast<int>(std::ranges::max_element(busy) - busy.begin()))) {
      const Unevenness here = unevenness(moved);
      if (!less(here, least)) continue;
      least = here;
      best = std::move(moved);
      better = true;
    }
  }
  return best;
}

}  // namespace tessera::search
