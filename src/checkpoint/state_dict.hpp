// Internal: the tensors of a PyTorch state dict in one file, by name. Nothing of a pickle is run.
#pragma once

#include <ATen/core/Tensor.h>
#include <filesystem>
#include <map>
#include <string>

namespace tessera::checkpoint {

// Reads a file that torch.save wrote, as a zip archive or, before PyTorch 1.6, as a series of pickles; or a .safetensors file. The state
// dict is what the file holds, or its entry "state_dict" or "model", which training scripts write; the prefix "module." of all names, which
// DataParallel adds, is removed. Tensors keep their types and are contiguous. Throws not_found, corrupt, or invalid_config for the tar
// archives of PyTorch before 0.1.10 and for types that no weights have.
std::map<std::string, at::Tensor> read_state_dict(const std::filesystem::path& file);

}  // namespace tessera::checkpoint
