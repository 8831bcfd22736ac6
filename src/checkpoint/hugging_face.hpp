// To and from folders as Hugging Face transformers writes them. https://huggingface.co/docs/transformers
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "model/model.hpp"

namespace tessera::checkpoint {

// model.safetensors is split beyond this size, as transformers' save_pretrained did for years.
inline constexpr std::int64_t kLargestWeightFile = 5'000'000'000;

enum class ExportType { f32, bf16 };

// Writes `out_dir` with the weights of a checkpoint, in fp32 or rounded to bf16: config.json (of whichever of transformers' models computes
// what this one does), generation_config.json, model.safetensors (or several and
// model.safetensors.index.json), tokenizer.json or tokenizer.model as it is, and tokenizer_config.json. Without `tokenizer` the run's own
// is taken, where there is one. Whole or not at all. Throws invalid_config when out_dir holds anything but an earlier export of ours,
// corrupt or not_found for the checkpoint, io.
void export_hf(const std::filesystem::path& checkpoint, const model::ModelSpec& model,
               const std::optional<std::filesystem::path>& tokenizer, const std::filesystem::path& out_dir,
               std::int64_t largest_weight_file = kLargestWeightFile, ExportType type = ExportType::f32);

// Makes the run `run_dir` of a folder with the weights of a language model that nn/ computes: train.yaml with the model
// filled in, checkpoints/step-000000 with fp32 weights (from f32, f16, bf16, or FP8 with scales of blocks) and no optimizer state, and the
// tokenizer's files. The train.yaml names `source` (an absolute path) as its text; where that is empty, none: the run can be generated
// from, but not trained or evaluated. The sequence length is the folder's, but at most `longest`. Whole or not at all. Throws
// invalid_config for what Tessera would compute otherwise (rotary positions scaled but by llama3's rule, windows in some layers only,
// weights quantized otherwise, ...), naming it, and when run_dir exists and is not empty; corrupt or not_found for missing, misshaped,
// unknown or damaged tensors; io.
void import_hf(const std::filesystem::path& dir, const std::filesystem::path& run_dir, const std::filesystem::path& source = {},
               std::int64_t longest = 4096);

// Writes the checkpoint of step 0 to `checkpoints`, with the weights of such a folder and no optimizer state, for a run of `model` that
// starts from them. A head that tells classes begins anew, from `seed`, where the folder's model has none: returns the names of such
// parameters. Throws as import_hf does, and invalid_config where the folder is of another model.
std::vector<std::string> import_hf_weights(const std::filesystem::path& dir, const model::ModelSpec& model, std::uint64_t seed,
                                           const std::filesystem::path& checkpoints);

}  // namespace tessera::checkpoint
