// A plan in the words of other systems. Both throw invalid_config where the other system cannot express the plan or the model:
// what it is, where in the plan file, and what could be said instead. The plan has passed check.
#pragma once

#include <string>

#include "plan/plan.hpp"

namespace tessera::interop {

// Flags of Megatron-LM's pretrain_gpt.py, one a line with its value: the model, batch, precision, steps and how it all is cut.
std::string megatron_flags(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train);

// The sections [training], [parallelism] and [activation_checkpoint] of torchtitan 0.2's TOML file.
std::string torchtitan_toml(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train);

}  // namespace tessera::interop
