#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/cut.hpp"
#include "checkpoint/element.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/hf_names.hpp"
#include "checkpoint/hugging_face.hpp"
#include "model/forms.hpp"

namespace tessera::checkpoint {
namespace {

constexpr const char* kIndexName = "model.safetensors.index.json";

// A tensor, which holds the elements of a parameter from `first` on.
struct Part {
  StoredTensor stored;
  std::string parameter;
  std::int64_t first = 0;
};

// A file of weights: consecutive tensors that together stay below the limit.
struct WeightFile {
  std::string name;
  std::vector<Part> parts;
};

std::vector<WeightFile> lay_out(const Reader& reader, const model::ModelSpec& model, std::int64_t largest, ElementType type) {
  std::vector<WeightFile> files(1);
  for (const model::BlockInstance& block : model.blocks())
    for (const model::ParameterSpec& parameter : block.spec->parameters) {
      if (!parameter.tied_to.empty()) continue;
      const TensorInfo& info = reader.tensor(block.parameter_name(parameter));
      if (info.shape != parameter.unstacked().shape)
        throw Error(ErrorCode::invalid_config, "tensor '" + info.name + "' of the checkpoint has another shape than the model's", {}, {},
                    "use the train.yaml that the run was started with");
      std::int64_t first = 0;
      for (const HfTensor& tensor : hf_tensors(model, block, parameter)) {
        const std::int64_t bytes = element_count(tensor.shape) * size_of(type);
        std::int64_t begin = files.back().parts.empty() ? 0 : files.back().parts.back().stored.end;
        if (begin > 0 && begin + bytes > largest) {
          files.emplace_back();
          begin = 0;
        }
        files.back().parts.push_back({{tensor.name, type, tensor.shape, begin, begin + bytes}, info.name, first});
        first += element_count(tensor.shape);
      }
    }
  for (std::size_t i = 0; i < files.size(); ++i) {
    char name[64] = "model.safetensors";
    if (files.size() > 1) std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, files.size());
    files[i].name = name;
  }
  return files;
}

void write_weights(FileSystem& disk, const std::filesystem::path& folder, const Reader& reader, const std::vector<WeightFile>& files) {
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  std::int64_t total = 0;
  std::string held;  // the parameter that was read last
  at::Tensor values;
  for (const WeightFile& weights : files) {
    auto file = disk.create(folder / weights.name);
    std::vector<StoredTensor> tensors;
    for (const Part& part : weights.parts) tensors.push_back(part.stored);
    const std::string header = safetensors_header(tensors, {{"format", "pt"}});
    file->append(std::as_bytes(std::span(header)));
    for (const Part& part : weights.parts) {
      if (part.parameter != held) values = reader.read(held = part.parameter).flatten();
      const at::Tensor own = values.narrow(0, part.first, element_count(part.stored.shape)).to(scalar_type(part.stored.type));
      file->append(bytes_of(own));
      map[part.stored.name] = weights.name;
      total += part.stored.end - part.stored.begin;
    }
    file->sync();
    file->close();
  }
  if (files.size() > 1)
    write_whole(disk, folder / kIndexName,
                nlohmann::ordered_json{{"metadata", {{"total_size", total}}}, {"weight_map", map}}.dump(2) + "\n");
}

// A folder that is empty or holds exactly what an export leaves may be replaced.
void check_target(const std::filesystem::path& out_dir) {
  if (!std::filesystem::exists(out_dir)) return;
  const auto refuse = [&](const std::string& what) {
    throw Error(ErrorCode::invalid_config, "the folder will not be overwritten: " + what, {out_dir.string(), 0, 0, -1, {}},
                "an empty or a new folder, or an earlier export");
  };
  if (!std::filesystem::is_directory(out_dir)) refuse("it is a file");
  if (std::filesystem::is_empty(out_dir)) return;
  const std::set<std::string> ours = {"config.json",    "generation_config.json", "model.safetensors",    kIndexName,
                                      "tokenizer.json", "tokenizer.model",        "tokenizer_config.json"};
  for (const auto& entry : std::filesystem::directory_iterator(out_dir)) {
    const std::string name = entry.path().filename();
    const bool shard = name.starts_with("model-") && name.ends_with(".safetensors");
    if (!ours.contains(name) && !shard) refuse("it holds " + name);
  }
  const auto config = out_dir / "config.json";
  if (!std::filesystem::exists(config) || read_whole(config).find(kExportMark) == std::string::npos)
    refuse("it holds a model that was not exported from here");
}

std::optional<std::filesystem::path> tokenizer_of_run(const std::filesystem::path& checkpoint) {
  const auto run = std::filesystem::absolute(checkpoint).lexically_normal().parent_path().parent_path();
  for (const char* name : {"tokenizer.json", "tokenizer.model"})
    if (std::filesystem::exists(run / name)) return run / name;
  return std::nullopt;
}

}  // namespace

void export_hf(const std::filesystem::path& checkpoint, const model::ModelSpec& model,
               const std::optional<std::filesystem::path>& tokenizer, const std::filesystem::path& out_dir,
               std::int64_t largest_weight_file, ExportType type) {
  FileSystem& disk = real_file_system();
  const std::set<std::string> known = {"llama", "mixtral", "qwen_moe", "deepseek", "gpt", "bert", "t5"};
  if (!known.contains(model.arch))
    throw Error(ErrorCode::invalid_config, "a model of kind " + model.arch + " cannot be exported", {},
                "llama, mixtral, qwen_moe, deepseek, gpt, bert or t5");
  const Reader reader(checkpoint);
  if (reader.state().model_fingerprint != model.fingerprint())
    throw Error(ErrorCode::invalid_config, "the checkpoint is of another model", {checkpoint.string(), 0, 0, -1, {}},
                "model " + model.fingerprint());
  const std::filesystem::path target = std::filesystem::absolute(out_dir / "").parent_path();
  check_target(target);
  const auto chosen = tokenizer ? tokenizer : tokenizer_of_run(checkpoint);
  const SpecialTokens tokens = chosen ? special_tokens(*chosen) : SpecialTokens{};
  const auto files = lay_out(reader, model, largest_weight_file, type == ExportType::bf16 ? ElementType::bf16 : ElementType::f32);

  auto temporary = target;
  temporary += ".tmp";
  auto replaced = target;
  replaced += ".replaced";
  try {
    disk.remove_all(temporary);
    disk.create_directories(temporary);
    write_weights(disk, temporary, reader, files);
    if (chosen) {
      const bool sentencepiece = chosen->extension() != ".json";
      write_whole(disk, temporary / (sentencepiece ? "tokenizer.model" : "tokenizer.json"), read_whole(*chosen));
      write_whole(disk, temporary / "tokenizer_config.json", tokenizer_config_json(model, tokens, sentencepiece));
    }
    if (model::predicts_next_token(model)) write_whole(disk, temporary / "generation_config.json", generation_config_json(tokens));
    write_whole(disk, temporary / "config.json", config_json(model, tokens, type));
    disk.remove_all(replaced);
    if (std::filesystem::exists(target)) disk.rename(target, replaced);
    disk.rename(temporary, target);
    disk.sync_directory(target.parent_path());
    disk.remove_all(replaced);
  } catch (const Error&) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
    if (!std::filesystem::exists(target) && std::filesystem::exists(replaced)) std::filesystem::rename(replaced, target, ignored);
    throw;
  }
}

}  // namespace tessera::checkpoint
