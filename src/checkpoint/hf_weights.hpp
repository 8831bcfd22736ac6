// Internal: the tensors of a Hugging Face folder, in one safetensors file or in several behind an index.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.hpp"
#include "checkpoint/safetensors.hpp"

namespace tessera::checkpoint {

// What a model.safetensors.index.json says: the file of each tensor, by a plain name (no way out of the folder). Throws corrupt, naming
// `path`.
std::map<std::string, std::string> parse_weight_map(const std::string& content, const std::filesystem::path& path);

class HfWeights {
 public:
  // Maps the files. Throws not_found (naming what is there instead), corrupt.
  explicit HfWeights(const std::filesystem::path& dir);

  struct Tensor {
    StoredTensor stored;
    std::filesystem::path file;
    std::span<const std::byte> bytes;  // valid while the HfWeights lives; not aligned
  };
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

 private:
  void open(const std::filesystem::path& file);

  std::vector<MappedFile> files_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace tessera::checkpoint
