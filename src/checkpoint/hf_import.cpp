#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <cstring>
#include <set>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/file_system.hpp"
#include "checkpoint/cut.hpp"
#include "checkpoint/element.hpp"
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

// A parameter, and the tensors of the folder that its elements stand in, one after another.
struct Weights {
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<const HfWeights::Tensor*> tensors;
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
        own.tensors.push_back(&find(weights, wanted, dir));
      }
    }
  for (const auto& [name, tensor] : weights.tensors())
    if (!expected.contains(name) && !is_left_out(model, name))
      throw Error(ErrorCode::invalid_config, "this model cannot be imported: it has a tensor '" + name + "'",
                  {tensor.file.string(), 0, 0, -1, {}}, "the tensors that its config.json asks for");
  return out;
}

at::Tensor load(const HfWeights::Tensor& tensor) {
  at::Tensor out = at::empty(tensor.stored.shape, at::TensorOptions().dtype(scalar_type(tensor.stored.type)));
  if (!out.is_floating_point())
    throw Error(ErrorCode::invalid_config, text("tensor '", tensor.stored.name, "' is of type ", name_of(tensor.stored.type)),
                {tensor.file.string(), 0, 0, -1, {}}, "F32, F16, BF16 or F64");
  if (!tensor.bytes.empty()) std::memcpy(out.mutable_data_ptr(), tensor.bytes.data(), tensor.bytes.size());
  return out.to(at::kFloat);
}

at::Tensor load(const Weights& weights) {
  std::vector<at::Tensor> parts;
  for (const HfWeights::Tensor* tensor : weights.tensors) parts.push_back(load(*tensor).flatten());
  return parts.size() == 1 ? parts.front() : at::cat(parts);
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
