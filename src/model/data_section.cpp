#include "model/data_section.hpp"

#include <algorithm>

#include "base/problems.hpp"
#include "model/yaml_path.hpp"

namespace tessera::model {
namespace {

// Far above any vocabulary.
constexpr std::int64_t kMostTokens = 1 << 30;

double fraction(const ConfigNode& node) {
  const double value = node.as_double();
  if (value <= 0 || value > 1) throw node.error(text("found ", value), "a number above 0 and at most 1");
  return value;
}

TokenizerSpec read_tokenizer(const ConfigNode& node) {
  TokenizerSpec tokenizer;
  Section section(node, {"kind", "vocab", "file"});
  section.read("kind", tokenizer.kind, [](const ConfigNode& kind) { return kind.as_choice({"bpe", "hf", "sentencepiece", "bytes"}); });
  section.read("vocab", tokenizer.vocab, [](const ConfigNode& vocab) { return vocab.as_int_between(257, kMostTokens); });
  section.read("file", tokenizer.file, path_of);
  section.finish();
  const bool needs_file = tokenizer.kind == "hf" || tokenizer.kind == "sentencepiece";
  if (needs_file && tokenizer.file.empty()) throw node.error("a tokenizer of kind '" + tokenizer.kind + "' needs its file", "file: PATH");
  if (!needs_file && !tokenizer.file.empty())
    throw node.at("file").error("a tokenizer of kind '" + tokenizer.kind + "' has no file", "kind: hf or sentencepiece");
  if (needs_file && node.has("vocab"))
    throw node.at("vocab").error("a tokenizer of kind '" + tokenizer.kind + "' has the vocabulary of its file", "no vocab");
  return tokenizer;
}

double read_split(const ConfigNode& node) {
  double train = DataSpec().train_fraction;
  Section section(node, {"train"});
  section.read("train", train, fraction);
  section.finish();
  return train;
}

double read_weight(const ConfigNode& node) {
  // Far beyond what anyone mixes, and shares of 1e-12 still are whole samples of an epoch.
  constexpr double kMost = 1e6;
  const double value = node.as_double();
  if (!(value >= 1 / kMost && value <= kMost)) throw node.error(text("found ", value), text("a number from ", 1 / kMost, " to ", kMost));
  return value;
}

SourceSpec read_source(const ConfigNode& node) {
  SourceSpec source;
  source.where = node.where();
  if (node.is_scalar()) {
    source.path = path_of(node);
    return source;
  }
  Section section(node, {"path", "weight"});
  section.need("path", source.path, path_of);
  section.read("weight", source.weight, read_weight);
  section.finish();
  return source;
}

std::vector<SourceSpec> read_sources(const ConfigNode& node) {
  std::vector<SourceSpec> sources;
  Problems problems;
  for (const ConfigNode& item : node.items()) problems.attempt([&] { sources.push_back(read_source(item)); });
  problems.raise();
  if (sources.empty()) throw node.error("the list is empty", "at least one source");
  const auto weighted = std::count_if(sources.begin(), sources.end(), [](const SourceSpec& source) { return source.weight.has_value(); });
  if (weighted != 0 && weighted != std::ssize(sources))
    throw node.error(text(weighted, " of ", sources.size(), " sources have a weight"), "a weight for all of them, or for none");
  return sources;
}

void read_source_or_sources(const ConfigNode& node, DataSpec& data) {
  const auto one = node.find("source");
  const auto several = node.find("sources");
  if (one && several) throw several->error("'source' and 'sources' exclude each other", "one of them");
  if (!one && !several) return;
  data.where = (one ? *one : *several).where();
  if (one && one->is_scalar() && one->as_string() == "synthetic")
    data.synthetic = true;
  else if (one)
    data.sources = {{.path = path_of(*one), .where = one->where()}};
  else
    data.sources = read_sources(*several);
}

void check_records(const ConfigNode& node, const RecordSpec& records) {
  if (records.prompt.empty() != records.answer.empty())
    throw node.at(records.answer.empty() ? "prompt" : "answer").error("'prompt' and 'answer' belong together", "both of them");
  if (records.has_prompts() && node.has("field"))
    throw node.at("field").error("'prompt' and 'answer' stand in place of 'field'", "no field");
}

OnError read_on_error(const ConfigNode& node) { return node.as_choice({"stop", "skip"}) == "skip" ? OnError::skip : OnError::stop; }

std::string key(const ConfigNode& node) {
  const std::string name = node.as_string();
  if (name.empty()) throw node.error("the key is empty", "a key of the records");
  return name;
}

}  // namespace

DataSpec read_data(const ConfigNode& node) {
  DataSpec data;
  data.where = node.where();
  Section section(node, {"source", "sources", "field", "prompt", "answer", "on_error", "separate_documents", "tokenizer", "split"});
  section.attempt([&] { read_source_or_sources(node, data); });
  section.read("field", data.records.field, key);
  section.read("prompt", data.records.prompt, key);
  section.read("answer", data.records.answer, key);
  section.attempt([&] { check_records(node, data.records); });
  section.read("on_error", data.records.on_error, read_on_error);
  // Answers to one question say nothing of the next.
  data.separate_documents = data.records.has_prompts();
  section.read("separate_documents", data.separate_documents, [](const ConfigNode& flag) { return flag.as_bool(); });
  section.read("tokenizer", data.tokenizer, read_tokenizer);
  section.read("split", data.train_fraction, read_split);
  section.finish();
  return data;
}

}  // namespace tessera::model
