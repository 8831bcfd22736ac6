#include "observe/resume.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/log.hpp"
#include "base/shell.hpp"
#include "data/text_dataset.hpp"
#include "model/forms.hpp"
#include "observe/run.hpp"

namespace tessera::observe {
namespace {

constexpr const char* kFile = "data.json";
constexpr const char* kSource = "data.source";
constexpr const char* kTokenizer = "data.tokenizer";

bool within(const std::string& key, const std::string& section) {
  return key.starts_with(section) && (key.size() == section.size() || key[section.size()] == '.');
}

std::filesystem::path tokenizer_of(const std::filesystem::path& run) {
  return std::filesystem::exists(run / "tokenizer.json") ? run / "tokenizer.json" : run / "tokenizer.model";
}

// Of a run that was imported, and never trained, the tokenizer alone is known.
DataIdentity identity_of(const std::filesystem::path& run) {
  DataIdentity out;
  if (std::filesystem::exists(tokenizer_of(run))) out[kTokenizer] = data::load_tokenizer(tokenizer_of(run))->fingerprint();
  const auto file = run / kFile;
  if (!std::filesystem::exists(file)) return out;
  const auto json = nlohmann::json::parse(read_whole(file), nullptr, false);
  if (!json.is_object()) throw Error(ErrorCode::corrupt, "the file cannot be read", {file.string(), 0, 0, -1, {}}, "a JSON object");
  for (const auto& [key, value] : json.items())
    if (value.is_string()) out[key] = value.get<std::string>();
  return out;
}

std::vector<ConfigDifference> changes(const DataIdentity& before, const DataIdentity& now) {
  std::vector<ConfigDifference> out = differences(before, now);
  if (!before.contains(kSource)) std::erase_if(out, [&](const ConfigDifference& change) { return !before.contains(change.key); });
  // Another tokenizer makes other tokens of the same text.
  const bool other_tokens = std::any_of(out.begin(), out.end(), [](const ConfigDifference& change) { return change.key == kTokenizer; });
  if (other_tokens) std::erase_if(out, [](const ConfigDifference& change) { return change.key == kSource; });
  return out;
}

std::string joined(const std::vector<std::string>& words, const char* between) {
  std::string out;
  for (const std::string& word : words) out += (out.empty() ? "" : between) + word;
  return out;
}

std::string change_text(const ConfigDifference& change) {
  const auto said = [](const std::string& value) { return value.empty() ? std::string("not given") : value; };
  return text(change.key, ": ", said(change.first), ", now ", said(change.second));
}

std::string joined_changes(const std::vector<ConfigDifference>& changes) {
  std::vector<std::string> words;
  for (const ConfigDifference& change : changes) words.push_back(change_text(change));
  return joined(words, "; ");
}

void check_named(const std::vector<std::string>& changed, const DataIdentity& before, const DataIdentity& now) {
  std::vector<std::string> keys = {kTokenizer};
  for (const DataIdentity* identity : {&before, &now})
    for (const auto& [key, value] : *identity)
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
  for (const std::string& name : changed) {
    const bool known = std::any_of(keys.begin(), keys.end(), [&](const std::string& key) { return within(key, name); });
    if (known) continue;
    const auto guess = nearest(name, keys);
    throw Error(ErrorCode::invalid_config, "--change " + name + ": the data do not rest on that", {},
                "data, or some of: " + joined(keys, ", "), guess ? "did you mean '" + *guess + "'?" : "");
  }
}

[[noreturn]] void refuse(const std::vector<ConfigDifference>& changes, const model::JobSpec& job, const std::filesystem::path& run) {
  std::vector<std::string> what;
  std::vector<std::string> keys;
  bool other_tokenizer = false;
  for (const ConfigDifference& change : changes) {
    keys.push_back(change.key);
    if (change.key == kSource) {
      what.push_back(text(change.key, model::reads_images(job.model)   ? " (other images)"
                                      : model::reads_clicks(job.model) ? " (another log)"
                                                                       : " (another text)"));
    } else if (change.key == kTokenizer) {
      other_tokenizer = true;
      what.push_back(text(change.key, " (another tokenizer: that setting, or the text that it is learned from, has changed)"));
    } else {
      what.push_back(change_text(change));
    }
  }
  std::string hint = text("to go on with other data on purpose, name it: --change ", joined(keys, ","));
  if (other_tokenizer) {
    const auto file = tokenizer_of(run);
    const std::string kind = file.extension() == ".model" ? "sentencepiece" : "hf";
    hint = text("keep its tokens: --set ", shell_quoted(text("data.tokenizer={kind: ", kind, ", file: ", file.string(), "}")),
                " (and --change data.source, if the text has changed too)\n  ", hint);
  }
  throw Error(ErrorCode::invalid_config, "the run would go on with other data than it was trained on: " + joined(what, "; "),
              {.file = job.file.string(), .block = {}}, "the data of " + run.string(), hint);
}

}  // namespace

DataIdentity data_identity(const model::JobSpec& job, const data::Dataset& dataset) {
  DataIdentity out;
  // What of the data section is not judged by what it comes to is judged by what it says.
  for (const auto& [key, value] : settings_of(ConfigNode::parse(job.resolved_yaml, job.file.string())))
    if (within(key, "data") && !key.starts_with(kSource) && !within(key, kTokenizer) && key != "data.workers") out[key] = value;
  out["train.seed"] = text(job.train.seed);
  out["train.global_batch"] = text(job.train.global_batch);
  out["data.split.train"] = text(job.data.train_fraction);
  if (job.data.mask) out["data.mask.share"] = text(job.data.mask->share);
  if (job.data.mask && job.data.mask->decoder_seq) out["data.mask.span"] = text(job.data.mask->span);
  std::string weights;
  for (const model::SourceSpec& source : job.data.sources) weights += text(weights.empty() ? "" : ", ", source.weight.value_or(1));
  if (job.data.sources.size() > 1) out["data.sources"] = "weights " + weights;
  out[kSource] = text(dataset.source_hash());
  if (data::as_text(dataset) != nullptr || model::classifies_text(job.model)) out["data.field"] = job.data.records.field;
  if (dataset.tokenizer() != nullptr) out[kTokenizer] = dataset.tokenizer()->fingerprint();
  return out;
}

void write_data_identity(const std::filesystem::path& run, const DataIdentity& identity) {
  write_whole(real_file_system(), run / kFile, nlohmann::ordered_json(identity).dump(2) + "\n");
}

std::vector<ConfigDifference> check_resumed(const model::JobSpec& job, const std::string& yaml, const data::Dataset& dataset,
                                            const std::filesystem::path& run, const std::vector<std::string>& changed) {
  const auto train_yaml = run / "train.yaml";
  const Where where{.file = job.file.string(), .block = {}};
  const std::string model = model::read_job(train_yaml).model.fingerprint();
  if (model != job.model.fingerprint())
    throw Error(ErrorCode::invalid_config, "the run is of another model (" + model + ")", where,
                "the model section of " + train_yaml.string(), "train the other model under another name, --set name=...");
  const auto steps = checkpoint_steps(run);
  if (!steps.empty() && steps.back() > job.train.steps)
    throw Error(ErrorCode::invalid_config, text("the run has made ", steps.back(), " steps, and train.steps is ", job.train.steps), where,
                text("train.steps of at least ", steps.back()),
                text("another run can start from an earlier checkpoint of this one: train.init: ", run.filename().string(), "@STEP"));
  const DataIdentity now = data_identity(job, dataset);
  const DataIdentity before = identity_of(run);
  check_named(changed, before, now);
  std::vector<ConfigDifference> unnamed = changes(before, now);
  std::erase_if(unnamed, [&](const ConfigDifference& change) {
    return std::any_of(changed.begin(), changed.end(), [&](const std::string& name) { return within(change.key, name); });
  });
  if (!unnamed.empty()) refuse(unnamed, job, run);

  auto out = differences(settings_of(ConfigNode::load(train_yaml)), settings_of(ConfigNode::parse(yaml, job.file.string())));
  std::erase_if(out, [](const ConfigDifference& difference) { return difference.key == "name"; });
  // What is not written in a train.yaml has a value all the same.
  for (ConfigDifference& difference : out) {
    if (const auto value = before.find(difference.key); difference.first.empty() && value != before.end()) difference.first = value->second;
    if (const auto value = now.find(difference.key); difference.second.empty() && value != now.end()) difference.second = value->second;
  }
  std::erase_if(out, [](const ConfigDifference& difference) { return difference.first == difference.second; });
  // A run that is complete can still be evaluated under another plan.
  std::vector<ConfigDifference> of_training = out;
  std::erase_if(of_training, [](const ConfigDifference& change) { return !within(change.key, "train") && !within(change.key, "data"); });
  if (!of_training.empty() && !steps.empty() && steps.back() == job.train.steps)
    throw Error(ErrorCode::invalid_config, text("the run has made all its ", steps.back(), " steps; no other setting changes it now"),
                where, text("train.steps above ", steps.back()), text("set now: ", joined_changes(of_training)));
  return out;
}

void show_changes(const std::vector<ConfigDifference>& differences) {
  std::string out = "the run goes on with other settings than before:";
  for (const ConfigDifference& difference : differences) out += "\n  " + change_text(difference);
  if (!differences.empty()) log::show(out);
}

}  // namespace tessera::observe
