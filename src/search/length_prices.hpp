// Internal: what passes over samples of different lengths cost under a plan.
#pragma once

#include <cstdint>
#include <span>

#include "cost/cost_model.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"

namespace tessera::search {

// From the prices of samples of the full length: attention grows with the square of a length, all else with the length. It takes the share
// of their seconds that the profile found, or that it has of their FLOPs. The plan has one stage, all of whose blocks have the same dp and
// cp.
plan::Lengths length_prices(const plan::Plan& plan, const model::JobSpec& job, const profile::Profile& profile,
                            cost::CostModel& cost_model);
// Prices a plan, which has lengths and was priced as if all samples had `seq` tokens, by how batch after batch of these samples is dealt to
// its ranks. They are whole batches, one at least. False, and it stays as it is, where its step is certainly no shorter than `most`.
bool price_by_lengths(plan::Plan& plan, std::span<const std::int64_t> samples, std::int64_t seq, Seconds most);

}  // namespace tessera::search
