// To and from state dicts as torchvision's models have them, whose parameters our ResNets and VGGs name alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/model.hpp"

namespace tessera::checkpoint {

// Writes the checkpoint of step 0 to `checkpoints`, with the tensors of the state dict in `file` (read_state_dict) by the names of the
// model's parameters, running statistics included, and no optimizer state, for a run of `model` that starts from them.
// `num_batches_tracked` is passed over. Where the file has no last linear map, or one for another number of classes, that map has the
// initial values of `seed`; returns its tensors' names then. Throws as read_state_dict does, and invalid_config, naming the tensor, where
// one is missing, unknown or of another shape.
std::vector<std::string> import_state_dict(const std::filesystem::path& file, const model::ModelSpec& model, std::uint64_t seed,
                                           const std::filesystem::path& checkpoints);

// Writes the weights of a checkpoint of a ResNet or VGG as a .safetensors file that torchvision's model of this kind loads with
// load_state_dict(strict=True): `num_batches_tracked` is the number of steps. Whole or not at all; an earlier export is replaced. Throws
// invalid_config for another kind of model and where `file` is anything else, corrupt or not_found for the checkpoint, io.
void export_torchvision(const std::filesystem::path& checkpoint, const model::ModelSpec& model, const std::filesystem::path& file);

}  // namespace tessera::checkpoint
