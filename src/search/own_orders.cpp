// Plans whose passes run in an order of their own, made for how long their stages take.
#include <algorithm>

#include "cost/cost.hpp"
#include "cost/priced_plan.hpp"
#include "plan/schedule/tuned_orders.hpp"
#include "search/depths.hpp"
#include "search/outer_solver.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

// Passes that tuning may look at, each time; some ten milliseconds.
constexpr std::int64_t kEffort = 2'000'000;
// A plan with an order of its own that is not shorter by this part is not worth it.
constexpr double kWorth = 0.01;

// How long passes take where the plan runs as its schedule says, with what they lose to communication beside them. Of ranks that differ,
// the slowest counts.
plan::TimedPipeline timed(const plan::Plan& plan, cost::CostModel& cost_model, double memory) {
  const sim::Simulation simulation = sim::simulate(plan, cost_model);
  plan::TimedPipeline out{.placement = plan.schedule,
                          .pipeline = pipeline_of(plan),
                          .micro_batches = static_cast<int>(plan.micro_batches),
                          .steps_overlap = plan.delayed_exchange};
  out.stages.resize(plan.stages.size());
  out.between.resize(static_cast<std::size_t>(out.pipeline.size));
  for (const program::Program& program : simulation.programs) {
    std::vector<plan::StageTimes> stages(plan.stages.size());
    Seconds between;
    for (const sim::Span& span : simulation.result.spans) {
      if (span.rank != program.rank) continue;
      const program::Instruction& instruction = program.instructions[static_cast<std::size_t>(span.instruction)];
      const Seconds seconds = span.end - span.begin;
      if (instruction.op == program::Op::optimizer_step) between += seconds;
      if (instruction.first_block < 0) continue;
      const int chunk = program.chunk_of(std::min(instruction.first_block, plan.stages.back().last_block() - 1));
      const Seconds each = seconds * (1.0 / static_cast<double>(plan.micro_batches));
      if (instruction.op == program::Op::send_activation) {
        // Named after the stage that receives it.
        for (std::size_t s = 0; s + 1 < plan.stages.size(); ++s)
          if (plan.stages[s].last_block() == instruction.first_block) stages[s].message += each;
        continue;
      }
      if (chunk < 0) continue;
      plan::StageTimes& times = stages[static_cast<std::size_t>(program.chunks[static_cast<std::size_t>(chunk)].stage)];
      if (instruction.op == program::Op::forward) times.forward += each;
      if (instruction.op == program::Op::backward_input) times.backward_input += each;
      if (instruction.op == program::Op::backward_weight) times.backward_weight += each;
    }
    for (std::size_t s = 0; s < stages.size(); ++s) {
      plan::StageTimes& most = out.stages[s];
      most.forward = std::max(most.forward, stages[s].forward);
      most.backward_input = std::max(most.backward_input, stages[s].backward_input);
      most.backward_weight = std::max(most.backward_weight, stages[s].backward_weight);
      most.message = std::max(most.message, stages[s].message);
    }
    Seconds& most = out.between[static_cast<std::size_t>(program.stage)];
    most = std::max(most, between);
  }
  const cost::PricedPlan priced(plan, cost_model);
  const std::vector<Bytes> all = priced.memory();
  const std::vector<Bytes> limits = cost::memory_limits(plan, cost_model.cluster());
  for (int rank = 0; rank < out.pipeline.size; ++rank) {
    out.bytes.push_back(priced.bytes(rank, 0).activations);
    const auto first = static_cast<std::size_t>(plan.stages[static_cast<std::size_t>(rank)].ranks.front());
    const auto limit = static_cast<std::int64_t>(memory * static_cast<double>(limits[first].value));
    out.room.push_back(limit - all[first].value + most_bytes(order_of(plan, rank), out.bytes.back()));
  }
  return out;
}

}  // namespace

Found OuterSolver::tuned(Found found) {
  const Outer& outer = *found.outer;
  if (!problem_.space.own_orders || outer.stages() == 1) return found;
  plan::Plan plan = found.plan;
  // Its backward passes are halves.
  if (outer.chunks == 1) plan.schedule = plan::Schedule::zb_h1;
  Found best = found;
  const Stages stages = stages_of(outer);
  const Placement placement{outer.stages(), outer.chunks, plan.schedule};
  start(outer, true);
  const auto try_order = [&](plan::Plan with, const std::vector<int>& cuts) {
    Found other{&outer, kNever, std::move(with), cuts};
    other.plan.predicted = sim::predict(other.plan, cost_model_);
    other.step = other.plan.predicted->step.value;
    if (other.step >= best.step * (1 - kEqual)) return false;
    best = std::move(other);
    return true;
  };
  for (bool improved = true; improved;) {
    effort_.watch();
    plan.order.clear();
    const plan::TimedPipeline pipeline = timed(plan, cost_model_, problem_.space.memory);
    plan::Orders first;
    for (int rank = 0; rank < pipeline.pipeline.size; ++rank) first.push_back(order_of(plan, rank));
    plan.order = tuned_orders(pipeline, first, kEffort);
    improved = try_order(plan, best.cuts);
    if (!improved) break;
    // The same order with single blocks moved from one stage to another.
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < placement.ranks; ++rank)
        for (const std::vector<int>& cuts : moves_from(best.cuts, placement, rank)) {
          std::optional<plan::Plan> other = plan_of(outer, stages, cuts);
          if (!other) continue;
          other->schedule = plan.schedule;
          other->order = plan.order;
          moved |= try_order(std::move(*other), cuts);
        }
    }
    plan = best.plan;
  }
  forget(outer);
  return best.step < found.step * (1 - kWorth) ? best : found;
}

}  // namespace tessera::search
