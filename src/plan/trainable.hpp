// What the trainer, and a measured profile, can do with a plan.
#pragma once

#include <string>

#include "plan/plan.hpp"

namespace tessera::plan {

// Throws invalid_config when the trainer cannot run the plan: several stages a rank, or what check_uniform refuses.
void check_trainable(const Plan& plan);
// Throws invalid_config, its text beginning with `refusal`, unless every block of every stage has the same dp and tp and every
// stage one zero, 0 or 1; no cp, ep, sequence parallelism, offload or selective recomputation; fp32 or bf16.
void check_uniform(const Plan& plan, const std::string& refusal, const std::string& hint = {});

}  // namespace tessera::plan
