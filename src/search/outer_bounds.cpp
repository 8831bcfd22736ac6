// What no plan of an outer choice is faster than, where the closed form is its price.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "plan/schedule/schedule.hpp"
#include "search/outer_solver.hpp"

namespace tessera::search {

double OuterSolver::bound(const Outer& outer) {
  const Kinds kinds = kinds_of(outer);
  if (kinds.empty()) return kNever;
  const std::vector<model::Repeat>& repeats = problem_.model.repeats;
  const std::vector<double> shares = shares_of(kinds);
  double work = 0;
  double most = 0;
  for (std::size_t r = 0; r < repeats.size(); ++r) {
    const int repeat = static_cast<int>(r);
    double busy = kNever;
    double share = kNever;
    for (std::size_t g = 0; g < kinds.size(); ++g) {
      busy = std::min(busy, kinds[g]->least_busy(repeat));
      share = std::min(share, shares[g] * kinds[g]->least_busy(repeat));
    }
    // Some stage holds at least an even share of the blocks, in whole blocks.
    const bool alike = kinds.size() == 1;
    most = std::max(most, (alike ? std::ceil(static_cast<double>(repeats[r].count) / outer.stages()) : 1) * busy);
    work += repeats[r].count * share;
  }
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
    double left = 0;
    for (std::size_t r = 0; r < problem_.model.repeats.size(); ++r) {
      double each = kNever;
      for (std::size_t g = 0; g < kinds.size(); ++g) each = std::min(each, shares[g] * (*least[g])[r][price]);
      left += problem_.model.repeats[r].count * each;
    }
    for (std::size_t g = 0; g < kinds.size(); ++g) {
      const GroupCut& cut = outer.groups[g];
      const double room = problem_.space.memory * cost_model_.memory_limit(cut.devices) - cost_model_.process_bytes(cut.devices);
      left -= shares[g] * kinds[g]->prices()[price] * (cut.stages * (room - workspace[g]) - largest_workspace);
    }
    best = std::max(best, left);
  }
  return best / all + least_warm_up(kinds) * (1 - largest / all) + host(outer);
}

OuterSolver::Kinds OuterSolver::kinds_of(const Outer& outer) {
  Kinds out;
  if (!possible(outer)) return {};
  for (const GroupCut& cut : outer.groups) out.push_back(&fronts(outer, cut));
  return out;
}

std::vector<double> OuterSolver::shares_of(const Kinds& kinds) const {
  std::vector<double> out;
  double base = 0;
  for (StageFronts* const kind : kinds) {
    const double work = sum_of_least(std::array{kind}, [](const StageFronts* of, int repeat) { return of->least_busy(repeat); });
    if (out.empty()) base = work;
    out.push_back(work > 0 && base > 0 ? base / work : 1);
  }
  return out;
}

bool OuterSolver::too_large(const Outer& outer) {
  double room = 0;
  for (const GroupCut& cut : outer.groups)
    room += cut.stages * (problem_.space.memory * cost_model_.memory_limit(cut.devices) - cost_model_.process_bytes(cut.devices));
  return sum_of_least(outer.groups, [&](const GroupCut& cut, int repeat) { return fronts(outer, cut).least_bytes(repeat); }) > room;
}

double OuterSolver::least_warm_up(const Kinds& kinds) const {
  return sum_of_least(kinds, [](const StageFronts* kind, int repeat) { return kind->least_warm_up(repeat); });
}

double OuterSolver::host(const Outer& outer) const {
  double out = 0;
  for (const GroupCut& cut : outer.groups) out = std::max(out, cost_model_.step_host(cut.devices));
  return out;
}

}  // namespace tessera::search
