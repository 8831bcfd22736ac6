// Which plans the trainer can run and measured profiles can price.
#pragma once

#include <string>

#include "plan/plan.hpp"

namespace tessera::plan {

// Throws invalid_config, which names `where`, when the trainer has no blocks for the model, or blocks that compute something else.
void check_trainable(const model::ModelSpec& model, const Where& where);
// Throws invalid_config when the trainer cannot run the plan: it cannot run the model, check_precision refuses the plan, blocks of a
// plug-in, which stand whole on each rank, are cut or compute their attention alone again, blocks on the same ranks share a parameter and
// cut it differently, sequence parallelism does not divide the samples of the model, or Ulysses' context parallelism its heads. The plan
// must have passed plan::check.
void check_trainable(const Plan& plan, const model::ModelSpec& model);
// Throws invalid_config, with a text that begins with `refusal`, unless the precision is fp32 or bf16.
void check_precision(const Plan& plan, const std::string& refusal, const std::string& hint = {});

}  // namespace tessera::plan
