// Internal: plans that exchange gradients while the next step begins (plan::Plan::delayed_exchange).
#pragma once

#include "cost/cost_model.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"

namespace tessera::search {

// Whether the search may delay the exchange of the job's plans: gradients are not clipped, samples are of one length, and `parallel:` does
// not say delayed_exchange: false.
bool may_delay(const model::JobSpec& job);

// The plan with a prediction; with a delayed exchange where the job asks for one, or may delay it and is predicted to gain enough by it.
plan::Plan delayed_if_faster(plan::Plan plan, const model::JobSpec& job, cost::CostModel& cost_model);

}  // namespace tessera::search
