#include "checkpoint/hf_weights.hpp"

#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/plain_name.hpp"

namespace tessera::checkpoint {

std::map<std::string, std::string> parse_weight_map(const std::string& content, const std::filesystem::path& path) {
  const Where where{path.string(), 0, 0, -1, {}};
  std::map<std::string, std::string> map;
  try {
    map = nlohmann::json::parse(content).at("weight_map").get<std::map<std::string, std::string>>();
  } catch (const nlohmann::json::exception& problem) {
    throw Error(ErrorCode::corrupt, text("not an index of weights: ", problem.what()), where);
  }
  for (const auto& [tensor, file] : map)
    if (!is_plain_name(file))
      throw Error(ErrorCode::corrupt, text("tensor '", tensor, "' cannot lie in '", file, "'"), where,
                  "the name of a file in the folder of the index, such as model-00001-of-00002.safetensors");
  return map;
}

HfWeights::HfWeights(const std::filesystem::path& dir) {
  const auto index = dir / "model.safetensors.index.json";
  if (!std::filesystem::exists(index)) {
    const auto single = dir / "model.safetensors";
    if (!std::filesystem::exists(single)) {
      const bool pickled =
          std::filesystem::exists(dir / "pytorch_model.bin") || std::filesystem::exists(dir / "pytorch_model.bin.index.json");
      throw Error(ErrorCode::not_found,
                  pickled ? "the weights are in PyTorch's pickle format, which may run any code when it is read" : "there are no weights",
                  {dir.string(), 0, 0, -1, {}}, "model.safetensors or model.safetensors.index.json",
                  pickled ? "convert them: save_pretrained(DIR, safe_serialization=True)" : std::string());
    }
    open(single);
    return;
  }
  const Where where{index.string(), 0, 0, -1, {}};
  const std::map<std::string, std::string> map = parse_weight_map(read_whole(index), index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : map) names.insert(file);
  for (const std::string& name : names) {
    // May be a link: in the cache of huggingface_hub every file is one.
    if (!std::filesystem::exists(dir / name)) throw Error(ErrorCode::not_found, "a file of the index is missing: " + name, where);
    if (!std::filesystem::is_regular_file(dir / name)) throw Error(ErrorCode::corrupt, "a file of the index is none: " + name, where);
    open(dir / name);
  }
  for (const auto& [tensor, file] : map)
    if (const auto found = tensors_.find(tensor); found == tensors_.end() || found->second.file != dir / file)
      throw Error(ErrorCode::corrupt, "tensor '" + tensor + "' is not in " + file, where);
}

void HfWeights::open(const std::filesystem::path& file) {
  files_.emplace_back(file);
  const auto bytes = files_.back().bytes();
  const SafetensorsHeader header = read_safetensors_header(bytes, file);
  for (const StoredTensor& tensor : header.tensors) {
    const auto data =
        bytes.subspan(static_cast<std::size_t>(header.size + tensor.begin), static_cast<std::size_t>(tensor.end - tensor.begin));
    if (!tensors_.emplace(tensor.name, Tensor{tensor, file, data}).second)
      throw Error(ErrorCode::corrupt, "tensor '" + tensor.name + "' stands in two files", {file.string(), 0, 0, -1, {}});
  }
}

}  // namespace tessera::checkpoint
