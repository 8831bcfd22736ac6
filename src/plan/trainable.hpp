// Which plans the trainer can run and measured profiles can price.
#pragma once

#include <string>

#include "plan/plan.hpp"

namespace tessera::plan {

// Throws invalid_config when the trainer cannot run the plan: check_uniform refuses it, or blocks on the same ranks share a parameter and
// cut it differently. The plan must have passed plan::check.
void check_trainable(const Plan& plan, const model::ModelSpec& model);
// Throws invalid_config, with a text that begins with `refusal`, unless the precision is fp32 or bf16, and no block has cp, ep, sequence
// parallelism, an offloaded optimizer or selective recomputation, or ZeRO-2 or 3 with a delayed exchange.
void check_uniform(const Plan& plan, const std::string& refusal, const std::string& hint = {});

}  // namespace tessera::plan
