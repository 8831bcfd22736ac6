#include <ATen/ops/empty.h>
#include <algorithm>
#include <charconv>
#include <cstring>
#include <set>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/log.hpp"
#include "checkpoint/cut.hpp"
#include "checkpoint/element.hpp"
#include "checkpoint/fp8.hpp"
#include "checkpoint/hf_names.hpp"
#include "checkpoint/hf_weights.hpp"
#include "checkpoint/hugging_face.hpp"
#include "checkpoint/whole_tensors.hpp"
#include "model/forms.hpp"
#include "model/hugging_face.hpp"
#include "model/yaml_path.hpp"

namespace tessera::checkpoint {
namespace {

std::string shape_text(const std::vector<std::int64_t>& shape) { return text(c10::IntArrayRef(shape)); }

// A tensor of the folder, and the one with the scales of its blocks where it is in FP8.
struct Source {
  const HfWeights::Tensor* values = nullptr;
  const HfWeights::Tensor* scales = nullptr;
};

// A parameter, and the tensors of the folder that its elements stand in, one after another.
struct Weights {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<Source> tensors;
};

const HfWeights::Tensor& find(const HfWeights& weights, const HfTensor& wanted, const std::filesystem::path& dir) {
  const auto found = weights.tensors().find(wanted.name);
  if (found == weights.tensors().end()) {
    std::vector<std::string> names;
    for (const auto& [known, tensor] : weights.tensors()) names.push_back(known);
    const auto guess = nearest(wanted.name, names);
    throw Error(ErrorCode::not_found, "tensor '" + wanted.name + "' is missing", {dir.string(), 0, 0, -1, {}},
                guess ? "there is '" + *guess + "'" : std::string());
  }
  if (found->second.stored.shape != wanted.shape)
    throw Error(ErrorCode::corrupt, text("tensor '", wanted.name, "' has the shape ", shape_text(found->second.stored.shape)),
                {found->second.file.string(), 0, 0, -1, {}}, shape_text(wanted.shape),
                "config.json and the weights are of different models");
  return found->second;
}

// What stands beside a matrix in FP8.
std::string scales_name(const std::string& name) { return name + "_scale_inv"; }

const HfWeights::Tensor* find_scales(const HfWeights& weights, const HfWeights::Tensor& values, bool quantized) {
  if (values.stored.type != ElementType::f8_e4m3) return nullptr;
  const std::string& name = values.stored.name;
  const auto refuse = [&](ErrorCode code, const std::string& problem, const std::filesystem::path& file, const std::string& expected) {
    throw Error(code, problem, {file.string(), 0, 0, -1, {}}, expected, "take another copy of the folder, or one in bf16");
  };
  if (!quantized)
    refuse(ErrorCode::invalid_config, text("tensor '", name, "' is of type F8_E4M3, but config.json says nothing of it"), values.file,
           "quantization_config with quant_method: fp8");
  if (values.stored.shape.size() != 2)
    refuse(ErrorCode::invalid_config, text("tensor '", name, "' is of type F8_E4M3, but no matrix"), values.file, "F32, F16 or BF16");
  const auto found = weights.tensors().find(scales_name(name));
  if (found == weights.tensors().end())
    refuse(ErrorCode::not_found, text("tensor '", name, "' is of type F8_E4M3, but has no scales"), values.file,
           text("a tensor '", scales_name(name), "'"));
  const HfWeights::Tensor& scales = found->second;
  if (const auto shape = scales_shape(values.stored.shape); scales.stored.shape != shape)
    refuse(ErrorCode::corrupt, text("tensor '", scales.stored.name, "' has the shape ", shape_text(scales.stored.shape)), scales.file,
           text(shape_text(shape), ", a scale for each block of ", model::kFp8Block, " rows and columns of '", name, "'"));
  if (scales.stored.type == ElementType::f8_e4m3)
    refuse(ErrorCode::invalid_config, text("tensor '", scales.stored.name, "' is of type F8_E4M3 itself"), scales.file,
           "F32, F16, BF16 or F64");
  return &scales;
}

// Whether the tensor is of a layer that predicts further tokens.
bool is_of_further_layer(const model::HuggingFaceWeights& folder, const std::string& name) {
  constexpr std::string_view kLayers = "model.layers.";
  if (!name.starts_with(kLayers)) return false;
  const char* const end = name.data() + name.size();
  std::int64_t layer = 0;
  const auto [rest, failed] = std::from_chars(name.data() + kLayers.size(), end, layer);
  return failed == std::errc() && rest != end && *rest == '.' && layer >= folder.layers && layer - folder.layers < folder.further_layers;
}

void check_tied(const HfWeights& weights, const std::string& name, const std::string& owner) {
  const auto found = weights.tensors().find(name);
  const auto source = weights.tensors().find(owner);
  if (found == weights.tensors().end() || source == weights.tensors().end()) return;
  if (std::equal(found->second.bytes.begin(), found->second.bytes.end(), source->second.bytes.begin(), source->second.bytes.end())) return;
  throw Error(ErrorCode::corrupt, text("'", name, "' and '", owner, "' should be one tensor, but differ"),
              {found->second.file.string(), 0, 0, -1, {}}, {}, "set tie_word_embeddings to false in config.json if they are two");
}

// What the model does not compute with: turns and masks that it makes itself, of T5 a copy of its table and one of relative positions that
// nothing reads, and of BERT positions as numbers, a second copy of a bias, and the task of telling whether sentences follow one another.
bool is_left_out(const model::ModelSpec& model, const std::string& name) {
  if (model.arch == "t5") return name == "encoder.embed_tokens.weight" || name.ends_with(".EncDecAttention.relative_attention_bias.weight");
  if (model.arch == "gpt") return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
  if (model.arch != "bert") return name.ends_with("rotary_emb.inv_freq");
  return name.ends_with(".position_ids") || name == "cls.predictions.decoder.bias" || name.starts_with("bert.pooler.") ||
         name.starts_with(model::classifies_text(model) ? "cls." : "cls.seq_relationship.");
}

// What its name begins with here and not in the folder: GPT-2's own files are of the model without its head, which has no weights.
std::string_view prefix_left_out(const HfWeights& weights, const model::ModelSpec& model) {
  return model.arch == "gpt" && weights.tensors().contains("wte.weight") ? "transformer." : "";
}

// BERT's first files call what norms multiply by and add gamma and beta.
std::string older_name(const HfWeights& weights, const std::string& name) {
  for (const auto& [now, then] : {std::pair{".LayerNorm.weight", ".LayerNorm.gamma"}, {".LayerNorm.bias", ".LayerNorm.beta"}})
    if (name.ends_with(now))
      if (const std::string older = name.substr(0, name.size() - std::string_view(now).size()) + then; weights.tensors().contains(older))
        return older;
  return name;
}

// The model's parameters in the model's order, but for those that begin anew. Every tensor of the folder must have a place.
std::vector<Weights> match(const HfWeights& weights, const model::ModelSpec& model, const std::filesystem::path& dir,
                           const std::set<std::string>& anew = {}) {
  const model::HuggingFaceWeights folder = model::hugging_face_weights(dir / "config.json");
  const std::string_view left_out = prefix_left_out(weights, model);
  const auto name_there = [&](const std::string& name) {
    const std::string there = name.starts_with(left_out) ? name.substr(left_out.size()) : name;
    return weights.tensors().contains(there) ? there : older_name(weights, there);
  };
  std::vector<Weights> out;
  std::set<std::string> expected;
  for (const model::BlockInstance& block : model.blocks())
    for (const model::ParameterSpec& parameter : block.spec->parameters) {
      if (!parameter.tied_to.empty()) {
        check_tied(weights, block.parameter_name(parameter), name_there(parameter.tied_to));
        expected.insert(block.parameter_name(parameter));
        continue;
      }
      if (anew.contains(block.parameter_name(parameter))) continue;
      Weights& own = out.emplace_back(Weights{block.parameter_name(parameter), parameter.unstacked().shape, {}});
      for (HfTensor wanted : hf_tensors(model, block, parameter)) {
        wanted.name = name_there(wanted.name);
        expected.insert(wanted.name);
        const HfWeights::Tensor& values = find(weights, wanted, dir);
        const HfWeights::Tensor* scales = find_scales(weights, values, folder.fp8);
        if (scales != nullptr) expected.insert(scales->stored.name);
        own.tensors.push_back({&values, scales});
      }
    }
  std::int64_t further = 0;
  for (const auto& [name, tensor] : weights.tensors()) {
    if (expected.contains(name) || is_left_out(model, name)) continue;
    if (!is_of_further_layer(folder, name))
      throw Error(ErrorCode::invalid_config, "this model cannot be imported: it has a tensor '" + name + "'",
                  {tensor.file.string(), 0, 0, -1, {}}, "the tensors that its config.json asks for");
    ++further;
  }
  if (further > 0)
    log::show(text(dir.string(), ": left out what predicts further tokens than the next (num_nextn_predict_layers: ", folder.further_layers,
                   "): ", further, " tensors, model.layers.", folder.layers, " and on"));
  return out;
}

// Into `out`: contiguous, f32, of as many elements.
void load_into(const at::Tensor& out, const HfWeights::Tensor& tensor) {
  const at::ScalarType type = scalar_type(tensor.stored.type);
  if (!at::isFloatingType(type))
    throw Error(ErrorCode::invalid_config, text("tensor '", tensor.stored.name, "' is of type ", name_of(tensor.stored.type)),
                {tensor.file.string(), 0, 0, -1, {}}, "F32, F16, BF16 or F64");
  // The file's bytes are not aligned.
  const at::Tensor stored = type == at::kFloat ? out : at::empty(out.sizes(), at::TensorOptions().dtype(type));
  if (!tensor.bytes.empty()) std::memcpy(stored.mutable_data_ptr(), tensor.bytes.data(), tensor.bytes.size());
  if (type != at::kFloat) out.copy_(stored);
}

// One tensor of the folder after another, so that a parameter of many (a layer's experts) is in memory once.
at::Tensor load(const Weights& weights) {
  at::Tensor out = at::empty(element_count(weights.shape), at::TensorOptions().dtype(at::kFloat));
  std::int64_t begin = 0;
  for (const auto& [values, scales] : weights.tensors) {
    const std::int64_t count = element_count(values->stored.shape);
    const at::Tensor part = out.narrow(0, begin, count);
    load_into(part, *values);
    if (scales != nullptr) {
      const at::Tensor loaded = at::empty(scales->stored.shape, at::TensorOptions().dtype(at::kFloat));
      load_into(loaded, *scales);
      multiply_blocks(part.view(values->stored.shape), loaded);
    }
    begin += count;
  }
  ensure(begin == out.numel(), weights.name + " is not as large as its tensors");
  return out;
}

std::vector<WholeTensor> whole_tensors(const std::vector<Weights>& all) {
  std::vector<WholeTensor> out;
  for (const Weights& weights : all) out.push_back({weights.name, weights.shape, [&weights] { return load(weights); }});
  return out;
}

// Copies the tokenizer's files; what the train.yaml says of the tokenizer. Where there is none, its place is named: text that is read
// with another tokenizer would mean nothing to the model.
std::string copy_tokenizer(FileSystem& disk, const std::filesystem::path& dir, const std::filesystem::path& run) {
  std::string said;
  for (const char* name : {"tokenizer.json", "tokenizer.model", "tokenizer_config.json"}) {
    if (!std::filesystem::exists(dir / name)) continue;
    write_whole(disk, run / name, read_whole(dir / name));
    const std::string kind = std::string_view(name) == "tokenizer.json" ? "hf" : "sentencepiece";
    if (said.empty() && std::string_view(name) != "tokenizer_config.json") said = text("{kind: ", kind, ", file: ", name, "}");
  }
  return said.empty() ? "{kind: hf, file: tokenizer.json}" : said;
}

}  // namespace

std::vector<std::string> import_hf_weights(const std::filesystem::path& dir, const model::ModelSpec& model, std::uint64_t seed,
                                           const std::filesystem::path& checkpoints) {
  const auto config = dir / "config.json";
  std::string yaml = model::hugging_face_yaml(config, model::ImportFor::computing, model.dim("seq"));
  // What a decoder has room for is no matter of its weights.
  if (model::predicts_masked_spans(model)) yaml.insert(yaml.size() - 1, text(", decoder_seq: ", model.dim("decoder_seq")));
  // The same parameters stand in other blocks.
  if (std::ranges::any_of(model.repeats, [](const model::Repeat& repeat) { return repeat.block.kind == "attention_sublayer"; }))
    yaml.insert(yaml.size() - 1, ", split_layers: true");
  const bool other_task = model::classifies_text(model) && yaml.find("head: classification") == std::string::npos;
  if (other_task) yaml.insert(yaml.size() - 1, text(", head: classification, classes: ", model.dim("classes")));
  const model::ModelSpec theirs = model::read_model(ConfigNode::parse(yaml, config.string()));
  if (theirs.fingerprint() != model.fingerprint())
    throw Error(ErrorCode::invalid_config, "the folder is of another model than the train.yaml", {config.string(), 0, 0, -1, {}},
                "the model section of the train.yaml", text("model: {hf: ", dir.string(), ", seq: ", model.dim("seq"), "} is this model"));
  const HfWeights weights(dir);
  State state;
  state.model_fingerprint = model.fingerprint();
  std::vector<std::string> anew;
  std::vector<WholeTensor> tensors;
  const model::BlockInstance head = model.blocks().back();
  if (other_task)
    for (const model::ParameterSpec& parameter : head.spec->parameters) {
      const std::string name = head.parameter_name(parameter);
      if (weights.tensors().contains(name)) continue;
      anew.push_back(name);
      tensors.push_back(begun_anew(name, parameter, seed));
    }
  const std::vector<Weights> found = match(weights, model, dir, {anew.begin(), anew.end()});
  for (WholeTensor& tensor : whole_tensors(found)) tensors.push_back(std::move(tensor));
  write_weights(real_file_system(), checkpoints, tensors, state);
  return anew;
}

void import_hf(const std::filesystem::path& dir, const std::filesystem::path& run_dir, const std::filesystem::path& source,
               std::int64_t longest) {
  FileSystem& disk = real_file_system();
  if (!std::filesystem::is_directory(dir)) throw Error(ErrorCode::not_found, "there is no such folder", {dir.string(), 0, 0, -1, {}});
  const std::filesystem::path target = std::filesystem::absolute(run_dir / "").parent_path();
  if (std::filesystem::exists(target) && !(std::filesystem::is_directory(target) && std::filesystem::is_empty(target)))
    throw Error(ErrorCode::invalid_config, "a run of this name exists", {run_dir.string(), 0, 0, -1, {}}, "a name that is not taken",
                "import it under another name");

  if (!std::filesystem::exists(dir / "config.json"))
    throw Error(ErrorCode::not_found, "there is no config.json", {dir.string(), 0, 0, -1, {}},
                "a folder that transformers' save_pretrained wrote");
  const std::string yaml = model::hugging_face_yaml(dir / "config.json", model::ImportFor::computing, longest);
  const model::ModelSpec model = model::read_model(ConfigNode::parse(yaml, (dir / "config.json").string()));
  const HfWeights weights(dir);
  const auto tensors = match(weights, model, dir);

  auto temporary = target;
  temporary += ".tmp";
  try {
    disk.remove_all(temporary);
    disk.create_directories(temporary);
    const std::string tokenizer = copy_tokenizer(disk, dir, temporary);
    State state;
    const std::string advice =
        source.empty() ? "To train it further or to evaluate it, name your text: data.source. Then" : "To train it further,";
    const std::string text_line = source.empty() ? "" : "source: " + model::quoted(source) + ", ";
    state.train_yaml =
        text("# The model was imported. ", advice, " --resume this run.\nname: ", target.filename(), "\nmodel: ", yaml, "\ndata: {",
             text_line, "tokenizer: ", tokenizer, "}\n",
             "train: {steps: 200, global_batch: 8, optimizer: {kind: adamw, lr: 2.0e-5}, schedule: {kind: cosine, warmup: 10}}\n");
    state.model_fingerprint = model.fingerprint();
    state.seed = 1;
    write_whole(disk, temporary / "train.yaml", state.train_yaml);
    write_weights(disk, temporary / "checkpoints", whole_tensors(tensors), state);
    if (std::filesystem::exists(target)) disk.remove_all(target);
    disk.rename(temporary, target);
    disk.sync_directory(target.parent_path());
  } catch (const Error&) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary, ignored);
    throw;
  }
}

}  // namespace tessera::checkpoint
