// Internal: what the trainer makes of a plan that the search has found: exchanges that stand beside the next step
// (plan::Plan::delayed_exchange), and samples of different lengths.
#pragma once

#include <cstdint>
#include <span>

#include "cost/cost_model.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"

namespace tessera::search {

// Whether the search may delay the exchange of the job's plans: gradients are not clipped, samples are of one length, and `parallel:` does
// not say delayed_exchange: false.
bool may_delay(const model::JobSpec& job);

// The plan with a prediction; with a delayed exchange where the job asks for one, or may delay it and is predicted to gain enough by it.
plan::Plan delayed_if_faster(plan::Plan plan, const model::JobSpec& job, cost::CostModel& cost_model);

// From the prices of samples of the full length: attention grows with the square of a length, all else with the length. It takes the share
// of their seconds that the profile found, or that it has of their FLOPs. The plan has one stage, all of whose blocks have the same dp and
// cp.
plan::Lengths length_prices(const plan::Plan& plan, const model::JobSpec& job, const profile::Profile& profile,
                            cost::CostModel& cost_model);
// Prices a plan, which has lengths and was priced as if all samples had `seq` tokens, by how batch after batch of these samples is dealt to
// its ranks. They are whole batches, one at least. False, and it stays as it is, where its step is certainly no shorter than `most`.
bool price_by_lengths(plan::Plan& plan, std::span<const std::int64_t> samples, std::int64_t seq, Seconds most);

}  // namespace tessera::search
