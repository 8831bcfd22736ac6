// Which plans the trainer can run and measured profiles can price.
#pragma once

#include <string>

#include "plan/plan.hpp"

namespace tessera::plan {

// Throws invalid_config when the trainer cannot run the plan: check_uniform refuses it, or sequence parallelism does not divide the samples
// of the model.
void check_trainable(const Plan& plan, const model::ModelSpec& model);
// Throws invalid_config, with a text that begins with `refusal`, unless all blocks have the same dp and tp and are all sequence-parallel or
// none, all stages have the same shares, the precision is fp32 or bf16, and no block has cp, ep or an offloaded optimizer.
void check_uniform(const Plan& plan, const std::string& refusal, const std::string& hint = {});

}  // namespace tessera::plan
