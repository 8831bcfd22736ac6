// Plans whose passes run in an order of their own, made for how long their stages take.
#include <algorithm>
#include <numeric>

#include "cost/cost.hpp"
#include "cost/priced_plan.hpp"
#include "plan/schedule/tuned_orders.hpp"
#include "search/depths.hpp"
#include "search/outer_solver.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

// Passes that tuning may look at each time, which takes some ten milliseconds, and how many may be simulated of all plans that are tried.
constexpr std::int64_t kEffort = 4'000'000, kSimulated = 100'000;
// Of cuts that each get an order of their own: so many that are the most even, of all if those are not more than the second figure.
constexpr std::size_t kTunedCuts = 24;
constexpr int kMostWays = 50'000;
// A plan with an order of its own that is not shorter by this part is not worth it.
constexpr double kGain = 0.01;

// The stage that ends before the block.
std::size_t stage_before(const plan::Plan& plan, int block) {
  std::size_t stage = 0;
  while (plan.stages[stage].last_block() != block) ++stage;
  return stage;
}

Seconds plan::StageTimes::*time_of(program::Op pass) {
  switch (pass) {
    case program::Op::forward: return &plan::StageTimes::forward;
    case program::Op::backward_input: return &plan::StageTimes::backward_input;
    case program::Op::backward_weight: return &plan::StageTimes::backward_weight;
    default: return nullptr;
  }
}

// How long passes take where the plan runs as its schedule says, with what they lose to communication beside them. Of ranks that differ,
// the slowest counts.
plan::TimedPipeline timed(const plan::Plan& plan, cost::CostModel& cost_model, double memory) {
  const sim::Simulation simulation = sim::simulate(plan, cost_model);
  plan::TimedPipeline out{.placement = plan.schedule,
                          .pipeline = pipeline_of(plan),
                          .micro_batches = static_cast<int>(plan.micro_batches),
                          .steps_overlap = plan.delayed_exchange};
  out.stages.resize(plan.stages.size());
  out.between.resize(out.pipeline.size);
  for (const program::Program& program : simulation.programs) {
    std::vector<plan::StageTimes> stages(plan.stages.size());
    Seconds between;
    for (const sim::Span& span : simulation.result.spans) {
      if (span.rank != program.rank) continue;
      const program::Instruction& instruction = program.instructions[span.instruction];
      const Seconds seconds = span.end - span.begin;
      const Seconds each = seconds * (1.0 / static_cast<double>(plan.micro_batches));
      if (instruction.op == program::Op::optimizer_step) between += seconds;
      if (instruction.op == program::Op::send_activation) stages[stage_before(plan, instruction.first_block)].message += each;
      Seconds plan::StageTimes::*const time = time_of(instruction.op);
      if (time == nullptr) continue;
      const program::Chunk& chunk = program.chunks[program.chunk_of(instruction.first_block)];
      stages[chunk.stage].*time += each;
    }
    for (std::size_t s = 0; s < stages.size(); ++s)
      for (Seconds plan::StageTimes::*time :
           {&plan::StageTimes::forward, &plan::StageTimes::backward_input, &plan::StageTimes::backward_weight, &plan::StageTimes::message})
        out.stages[s].*time = std::max(out.stages[s].*time, stages[s].*time);
    Seconds& most = out.between[program.stage];
    most = std::max(most, between);
  }
  const cost::PricedPlan priced(plan, cost_model);
  const std::vector<Bytes> all = priced.memory();
  const std::vector<Bytes> limits = cost::memory_limits(plan, cost_model.cluster());
  for (int rank = 0; rank < out.pipeline.size; ++rank) {
    out.bytes.push_back(priced.bytes(rank, 0).activations);
    const int first = plan.stages[rank].ranks.front();
    const auto limit = static_cast<std::int64_t>(memory * static_cast<double>(limits[first].value));
    out.room.push_back(limit - all[first].value + most_bytes(order_of(plan, rank), out.bytes.back()));
  }
  return out;
}

// Its backward passes are halves.
plan::Schedule schedule_of(const Outer& outer, const plan::Plan& plan) { return outer.chunks == 1 ? plan::Schedule::zb_h1 : plan.schedule; }

void give_own_order(plan::Plan& plan, cost::CostModel& cost_model, double memory) {
  plan.order.clear();
  const plan::TimedPipeline pipeline = timed(plan, cost_model, memory);
  plan::Orders first;
  for (int rank = 0; rank < pipeline.pipeline.size; ++rank) first.push_back(order_of(plan, rank));
  plan.order = tuned_orders(pipeline, first, kEffort);
}

}  // namespace

bool OuterSolver::replace_if_shorter(Found& best, plan::Plan plan, const std::vector<int>& cuts) {
  Found other = predicted(*best.outer, std::move(plan), cuts);
  if (other.step >= best.step * (1 - kEqual)) return false;
  // An order is made for the room that one cut of the blocks leaves; another may leave less.
  if (cost::fullest_rank(other.plan, other.plan.predicted->memory, problem_.cluster).share > problem_.space.memory) return false;
  best = std::move(other);
  return true;
}

Found OuterSolver::tuned(Found found) {
  const Outer& outer = *found.outer;
  if (!problem_.space.own_orders || outer.stages() == 1) return found;
  plan::Plan plan = found.plan;
  plan.schedule = schedule_of(outer, plan);
  Found best = found;
  const Placement placement{outer.stages(), outer.chunks, plan.schedule};
  start(outer, true);
  std::int64_t simulated = 0;
  const auto try_order = [&](plan::Plan with, const std::vector<int>& cuts) {
    simulated += static_cast<std::int64_t>(with.stages.size()) * with.micro_batches * 3;
    return replace_if_shorter(best, std::move(with), cuts);
  };
  for (bool improved = true; improved;) {
    effort_.watch();
    give_own_order(plan, cost_model_, problem_.space.memory);
    improved = try_order(plan, best.cuts);
    if (!improved) break;
    // The same order with single blocks moved from one stage to another.
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < placement.ranks; ++rank)
        for (const std::vector<int>& cuts : moves_from(best.cuts, placement, rank)) {
          if (simulated > kSimulated) break;
          std::optional<plan::Plan> other = plan_of(outer, cuts);
          if (!other) continue;
          other->schedule = plan.schedule;
          other->order = plan.order;
          other->delayed_exchange = plan.delayed_exchange;
          moved |= try_order(std::move(*other), cuts);
        }
    }
    plan = best.plan;
  }
  forget();
  return best.step < found.step * (1 - kGain) ? best : found;
}

Found OuterSolver::recut(Found found) {
  const Outer& outer = *found.outer;
  if (!problem_.space.own_orders || outer.stages() == 1) return found;
  Found best = found;
  const Placement placement{outer.stages(), outer.chunks, schedule_of(outer, found.plan)};
  start(outer, true);
  std::vector<std::vector<int>> ways = all_cuts(found.cuts.back(), placement.stages(), kMostWays);
  if (ways.empty())
    for (int rank = 0; rank < placement.ranks; ++rank)
      for (std::vector<int>& cuts : moves_from(found.cuts, placement, rank)) ways.push_back(std::move(cuts));
  // Seconds of the busiest pipeline rank, and the squares of all.
  const auto unevenness = [&](const std::vector<int>& cuts) {
    std::vector<double> busy(placement.ranks, 0.0);
    for (int stage = 0; stage < placement.stages(); ++stage) {
      const int rank = placement.rank_of(stage);
      for (int block = cuts[stage]; block < cuts[stage + 1]; ++block)
        busy[rank] += stages_.kinds[rank]->least(cost_model_.repeat_of()[block]).busy;
    }
    return std::pair(std::ranges::max(busy), std::inner_product(busy.begin(), busy.end(), busy.begin(), 0.0));
  };
  std::vector<std::pair<std::pair<double, double>, const std::vector<int>*>> by_unevenness;
  for (const std::vector<int>& cuts : ways) by_unevenness.emplace_back(unevenness(cuts), &cuts);
  std::ranges::stable_sort(by_unevenness, [](const auto& a, const auto& b) { return a.first < b.first; });
  by_unevenness.resize(std::min(by_unevenness.size(), kTunedCuts));
  for (const auto& [busy, cuts] : by_unevenness) {
    if (busy.first > best.step || is_set(problem_.stop)) break;
    std::optional<plan::Plan> plan = plan_of(outer, *cuts);
    if (!plan) continue;
    plan->schedule = placement.schedule;
    plan->delayed_exchange = found.plan.delayed_exchange;
    give_own_order(*plan, cost_model_, problem_.space.memory);
    replace_if_shorter(best, std::move(*plan), *cuts);
  }
  forget();
  return best.step < found.step * (1 - kGain) ? best : found;
}

}  // namespace tessera::search
