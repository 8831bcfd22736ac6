// What no plan of an outer choice is faster than, where the closed form is its price.
#include <algorithm>
#include <bit>
#include <cmath>

#include "plan/schedule/schedule.hpp"
#include "search/outer_solver.hpp"

namespace tessera::search {

double OuterSolver::bound(const Outer& outer) {
  if (!possible(outer)) return kNever;
  const Kinds kinds = kinds_of(outer);
  const std::vector<double> shares = shares_of(kinds);
  double most = 0;
  for (std::size_t r = 0; r < problem_.model.repeats.size(); ++r) {
    double busy = kNever;
    for (const StageFronts* kind : kinds) busy = std::min(busy, kind->least(static_cast<int>(r)).busy);
    // Some stage holds at least an even share of the blocks, in whole blocks.
    const bool alike = kinds.size() == 1;
    most = std::max(most, (alike ? std::ceil(static_cast<double>(problem_.model.repeats[r].count) / outer.stages()) : 1) * busy);
  }
  const double work = sum_of_least(kinds.size(), [&](std::size_t g, int repeat) { return shares[g] * kinds[g]->least(repeat).busy; });
  double capacity = 0;
  for (std::size_t g = 0; g < kinds.size(); ++g) capacity += outer.groups[g].stages * shares[g];
  return std::max(most, work / capacity) + least_warm_up(kinds) + host(outer);
}

double OuterSolver::bound_with_memory(const Outer& outer) {
  const Kinds kinds = kinds_of(outer);
  const std::vector<double> shares = shares_of(kinds);
  double all = 0;
  double largest = 0;
  double largest_workspace = 0;
  std::vector<const std::vector<std::vector<double>>*> least;
  std::vector<double> workspace;  // of a stage at least
  int stage = 0;
  for (std::size_t g = 0; g < kinds.size(); ++g) {
    const GroupCut& cut = outer.groups[g];
    stage += cut.stages;
    // Where a rank has several stages, of each of them one.
    const auto held =
        static_cast<std::uint64_t>(outer.chunks > 1 ? 1 : plan::in_flight(outer.schedule, stage - 1, outer.stages(), outer.micro_batches));
    // Fewer held is a bound too: powers of two make few tables.
    least.push_back(&kinds[g]->priced(static_cast<double>(std::bit_floor(held))));
    const std::vector<double>& workspaces = kinds[g]->workspaces(static_cast<double>(std::bit_floor(held)));
    workspace.push_back(std::ranges::min(workspaces));
    // Stages alike: one of them holds the block that needs most.
    if (kinds.size() == 1) largest_workspace = std::ranges::max(workspaces) - workspace.back();
    all += cut.stages * shares[g];
    largest = std::max(largest, shares[g]);
  }
  double best = 0;
  for (std::size_t price = 0; price < kinds.front()->prices().size(); ++price) {
    double left = sum_of_least(kinds.size(), [&](std::size_t g, int repeat) { return shares[g] * (*least[g])[repeat][price]; });
    for (std::size_t g = 0; g < kinds.size(); ++g) {
      const GroupCut& cut = outer.groups[g];
      left -= shares[g] * kinds[g]->prices()[price] * (cut.stages * (room(cut) - workspace[g]) - largest_workspace);
    }
    best = std::max(best, left);
  }
  return best / all + least_warm_up(kinds) * (1 - largest / all) + host(outer);
}

OuterSolver::Kinds OuterSolver::kinds_of(const Outer& outer) {
  Kinds out;
  for (const GroupCut& cut : outer.groups) out.push_back(&fronts(outer, cut));
  return out;
}

std::vector<double> OuterSolver::shares_of(const Kinds& kinds) const {
  std::vector<double> out;
  double base = 0;
  for (const StageFronts* kind : kinds) {
    const double work = sum_of_least(1, [&](std::size_t, int repeat) { return kind->least(repeat).busy; });
    if (out.empty()) base = work;
    out.push_back(work > 0 && base > 0 ? base / work : 1);
  }
  return out;
}

bool OuterSolver::too_large(const Outer& outer) {
  double all = 0;
  for (const GroupCut& cut : outer.groups) all += cut.stages * room(cut);
  const Kinds kinds = kinds_of(outer);
  return sum_of_least(kinds.size(), [&](std::size_t g, int repeat) { return kinds[g]->least(repeat).bytes; }) > all;
}

double OuterSolver::least_warm_up(const Kinds& kinds) const {
  return sum_of_least(kinds.size(), [&](std::size_t kind, int repeat) { return kinds[kind]->least(repeat).warm_up; });
}

double OuterSolver::host(const Outer& outer) const {
  double out = 0;
  for (const GroupCut& cut : outer.groups) out = std::max(out, cost_model_.step_host(cut.devices));
  return out;
}

}  // namespace tessera::search
