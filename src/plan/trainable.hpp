// Which plans the trainer can run and measured profiles can price.
#pragma once

#include <string>

#include "plan/plan.hpp"

namespace tessera::plan {

// Throws invalid_config when the trainer cannot run the plan: ranks hold several stages, or check_uniform refuses it.
void check_trainable(const Plan& plan);
// Throws invalid_config, with a text that begins with `refusal`, unless all blocks have the same dp and tp, each stage has one ZeRO stage,
// 0 or 1, the precision is fp32 or bf16, and no block has cp, ep, sequence parallelism, an offloaded optimizer or selective recomputation.
void check_uniform(const Plan& plan, const std::string& refusal, const std::string& hint = {});

}  // namespace tessera::plan
