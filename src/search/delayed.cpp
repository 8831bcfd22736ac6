// Plans that exchange gradients while the next step begins.
#include <fmt/format.h>
#include <optional>

#include "cost/cost.hpp"
#include "search/as_trained.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::search {
namespace {

// What a delayed exchange must save of a step: it costs a little that is not priced (./dev bench delayed).
constexpr double kWorth = 0.04;
// Steps that differ by less are equal.
constexpr double kSame = 1e-6;
// Shares of the gradients that a delayed exchange sends as they become complete.
constexpr double kEarly[] = {1, 0.75, 0.5, 0.25};

}  // namespace

bool may_delay(const model::JobSpec& job) {
  return job.train.optimizer.clip == 0 && !job.data.lengths && job.parallel.delayed_exchange.value_or(true);
}

plan::Plan delayed_if_faster(plan::Plan plan, const model::JobSpec& job, cost::CostModel& cost_model) {
  if (!may_delay(job)) return plan;
  const bool played = cost::plays_exchanges(plan, cost_model.cluster());
  const auto predicted = [&](const plan::Plan& of) { return played ? sim::predict(of, cost_model) : cost::predict(of, cost_model); };
  if (plan.delayed_exchange) {
    plan.delayed_exchange = false;
    plan.predicted = predicted(plan);
  }
  std::optional<plan::Plan> best;
  for (const double early : kEarly) {
    plan::Plan delayed = plan;
    delayed.delayed_exchange = true;
    delayed.exchanged_early = early;
    delayed.staleness = job.parallel.staleness;
    delayed.predicted = predicted(delayed);
    if (!best || delayed.predicted->step.value < best->predicted->step.value * (1 - kSame)) best = std::move(delayed);
  }
  const bool faster = best->predicted->step.value < plan.predicted->step.value * (1 - kWorth);
  return job.parallel.delayed_exchange.value_or(false) || faster ? *best : plan;
}

std::string clipping_text(const plan::Plan& plan, const model::JobSpec& job, const cluster::ClusterSpec& cluster,
                          const profile::Profile& profile) {
  if (job.train.optimizer.clip == 0) return {};
  model::JobSpec unclipped = job;
  unclipped.train.optimizer.clip = 0;
  cost::CostModel cost_model(unclipped.model, unclipped.train, cluster, profile);
  const plan::Plan other = delayed_if_faster(plan, unclipped, cost_model);
  if (!other.delayed_exchange) return {};
  return fmt::format(
      "gradients are exchanged at the step's end, as train.optimizer.clip {} needs the norm of all of them; with train.optimizer.clip: 0 "
      "this plan could exchange them while the next step begins: a step of {}, {:.1f} % less\n",
      job.train.optimizer.clip, to_text(other.predicted->step), 100 * (1 - other.predicted->step / plan.predicted->step));
}

}  // namespace tessera::search
