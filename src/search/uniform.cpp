// Outer choices of uniform spaces, whose plans the simulator prices.
#include <algorithm>
#include <array>
#include <cmath>

#include "plan/schedule/schedule.hpp"
#include "search/depths.hpp"
#include "search/outer_solver.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

// Up to so many ways to cut the blocks are all simulated.
constexpr int kMostSimulated = 32;
// So much longer than simulated the closed form may take a step to be.
constexpr double kLoose = 1.5;

// What simulating a plan counts for as effort.
std::int64_t effort_of(const plan::Plan& plan) {
  return 2000 + 30 * static_cast<std::int64_t>(plan.stages.size()) * plan.micro_batches + plan.world_size();
}

bool whole_backward(plan::Schedule schedule) { return schedule == plan::Schedule::one_f_one_b || schedule == plan::Schedule::gpipe; }

}  // namespace

double OuterSolver::least_step(const Outer& outer) {
  const double total = sum_of_least(outer.groups.size(), [&](std::size_t g, int repeat) { return passes(outer, outer.groups[g], repeat); });
  const auto m = static_cast<double>(outer.micro_batches);
  return whole_backward(outer.schedule) ? total / (1 - std::pow(1 - 1 / m, outer.stages())) : total / outer.stages() * m;
}

std::optional<Found> OuterSolver::simulate(const Outer& outer, double incumbent) {
  if (too_large(outer)) return {};
  start(outer, true);
  std::vector<std::vector<int>> ways = all_cuts(problem_.model.block_count(), outer.stages() * outer.chunks, kMostSimulated);
  std::optional<Found> best;
  try {
    if (ways.empty() && outer.chunks > 1) {
      ways = first_cuts(outer);
    } else if (ways.empty()) {
      std::deque<Tail> tails;
      if (const Tail* tail = best_tail(outer, kLoose * incumbent, tails); tail != nullptr) ways.push_back(cuts_of(tail));
    }
    for (const std::vector<int>& cuts : ways) {
      if (least_step(outer, cuts) > std::min(incumbent, best ? best->step : kNever) * (1 + kEqual)) continue;
      effort_.watch();
      std::optional<Found> found = simulated(outer, cuts, false);
      if (found && (!best || found->better_than(*best))) best = std::move(found);
    }
  } catch (const Effort::OutOfEffort&) {
    if (!best) throw;
  }
  forget();
  return best;
}

Found OuterSolver::refined(Found found) {
  const Outer& outer = *found.outer;
  start(outer, true);
  if (problem_.delayed_exchange)
    if (std::optional<Found> delayed = simulated(outer, found.cuts, true)) found = std::move(*delayed);
  for (bool improved = outer.stages() > 1; improved;) {
    improved = false;
    for (std::size_t s = 1; s + 1 < found.cuts.size(); ++s)
      for (const int move : {-1, 1}) {
        std::vector<int> cuts = found.cuts;
        cuts[s] += move;
        if (cuts[s] <= cuts[s - 1] || cuts[s] >= cuts[s + 1]) continue;
        std::optional<Found> other = simulated(outer, cuts, problem_.delayed_exchange);
        if (!other || other->step >= found.step * (1 - 1e-6)) continue;
        found = std::move(*other);
        improved = true;
      }
  }
  forget();
  return found;
}

double OuterSolver::passes(const Outer& outer, const GroupCut& cut, int repeat) {
  const model::BlockSpec& block = problem_.model.repeats[repeat].block;
  const int tp = static_cast<int>(tensor_of(problem_.space, block, outer.fixed.tensor));
  const int cp = outer.fixed.context;
  plan::Strategy strategy{.dp = cut.width / (tp * cp), .tp = tp, .zero = outer.fixed.zero, .cp = cp};
  strategy.sequence_parallel = sequence_parallel_of(problem_.space, block, strategy.tp, strategy.cp).value_or(false);
  double least = kNever;
  for (const model::ContextKind context : contexts_of(problem_.space, block, strategy.tp, strategy.cp)) {
    strategy.context = context;
    const cost::BlockLoad& load = cost_model_.block(repeat, cut.devices, strategy, problem_.global_batch / outer.micro_batches);
    least = std::min(least, load.forward + load.backward());
  }
  return least;
}

double OuterSolver::least_step(const Outer& outer, const std::vector<int>& cuts) {
  if (outer.chunks > 1) return least_step(outer);
  double out = 0;
  double before = 0;
  for (std::size_t s = 0; s + 1 < cuts.size(); ++s) {
    double stage = 0;
    for (int b = cuts[s]; b < cuts[s + 1]; ++b) stage += passes(outer, *stages_.cuts[s], cost_model_.repeat_of()[b]);
    out = std::max(out, (whole_backward(outer.schedule) ? before : 0) + static_cast<double>(outer.micro_batches) * stage);
    before += stage;
  }
  return out;
}

std::optional<Found> OuterSolver::simulated(const Outer& outer, const std::vector<int>& cuts, bool delayed) {
  std::optional<plan::Plan> plan = plan_of(outer, cuts);
  if (!plan) return {};
  plan->delayed_exchange = delayed;
  effort_.used += effort_of(*plan);
  return predicted(outer, std::move(*plan), cuts);
}

Found OuterSolver::predicted(const Outer& outer, plan::Plan plan, const std::vector<int>& cuts) {
  plan.predicted = sim::predict(plan, cost_model_);
  return {&outer, plan.predicted->step.value, std::move(plan), cuts};
}

std::optional<plan::Plan> OuterSolver::plan_of(const Outer& outer, const std::vector<int>& cuts) {
  if (outer.chunks > 1) {
    const std::optional<RankEntries> entries = best_of_cut(outer, cuts, kNever);
    return entries ? std::optional(plan_of(outer, *entries)) : std::nullopt;
  }
  const int stages = outer.stages();
  std::deque<Tail> tails;
  const Tail* tail = &tails.emplace_back();
  for (int s = stages - 1; s >= 0; --s) {
    const auto held = static_cast<double>(plan::in_flight(outer.schedule, s, stages, outer.micro_batches));
    const std::vector<const StageEntry*>& front = stages_.kinds[s]->front(std::array{Segment{cuts[s], cuts[s + 1], held}}, kNever);
    const auto best = std::ranges::min_element(front, {}, [](const StageEntry* entry) { return entry->busy + entry->warm_up; });
    if (best == front.end()) return {};
    tail = &tails.emplace_back(Tail{0, 0, *best, cuts[s + 1], tail});
  }
  return plan_of(outer, tail);
}

}  // namespace tessera::search
