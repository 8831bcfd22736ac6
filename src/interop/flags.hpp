// Writes plans for other systems. Both functions throw invalid_config when the other system cannot express the plan or the model; the error
// says what it is, where it stands in the plan file, and what would do. The plan must have passed plan::check.
#pragma once

#include <string>

#include "plan/plan.hpp"

namespace tessera::interop {

// Flags of Megatron-LM's pretrain_gpt.py, one a line with its value: the model, the batch, the precision, the steps and the parallelism.
std::string megatron_flags(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train);

// The sections [training], [parallelism] and [activation_checkpoint] of torchtitan 0.2's TOML file.
std::string torchtitan_toml(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train);

// Throw what the functions above throw for every plan of the model.
void check_megatron_model(const model::ModelSpec& model);
void check_torchtitan_model(const model::ModelSpec& model);

}  // namespace tessera::interop
