// Internal: prices plans by what the trainer does beyond the space of the search: exchanges that overlap with the next step
// (plan::Plan::delayed_exchange), and samples of different lengths.
#pragma once

#include <cstdint>
#include <span>

#include "cost/cost_model.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"

namespace tessera::search {

// Whether the search may delay the gradient exchange of the job's plans: gradients are not clipped, samples have one length, and
// `parallel:` does not say delayed_exchange: false.
bool may_delay(const model::JobSpec& job);

// The plan with a prediction. Its exchange is delayed if the job asks for that, or if the job allows it and the prediction gains enough.
plan::Plan delayed_if_faster(plan::Plan plan, const model::JobSpec& job, cost::CostModel& cost_model);

// Prices by length, from the prices of samples of the full length: attention grows with the square of a sample's length, all else with the
// length. Attention's share of the seconds is what the profile found, or else its share of the FLOPs. The plan has one stage, all of whose
// blocks have the same dp and cp.
plan::Lengths length_prices(const plan::Plan& plan, const model::JobSpec& job, const profile::Profile& profile,
                            cost::CostModel& cost_model);
// Prices a plan that has lengths and was priced as if all samples had `seq` tokens: deals the batches of `samples` (at least one, all of
// them whole) to its ranks one by one. Returns false, and leaves the plan as it is, if its step is certainly no shorter than `most`.
bool price_by_lengths(plan::Plan& plan, std::span<const std::int64_t> samples, std::int64_t seq, Seconds most);

}  // namespace tessera::search
