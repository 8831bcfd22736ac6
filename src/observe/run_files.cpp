#include "observe/run_files.hpp"

#include "base/error.hpp"
#include "base/file_system.hpp"

namespace tessera::observe {
namespace {

std::string yaml_of_run(const std::filesystem::path& train_yaml, std::vector<std::string> overrides) {
  const model::JobSpec job = model::read_job(train_yaml, overrides);
  const auto absolute = [&](const std::string& key, const std::filesystem::path& path) {
    overrides.push_back(key + "=" + std::filesystem::absolute(path).string());
  };
  if (job.data.source != "synthetic") absolute("data.source", job.data.source);
  if (!job.data.tokenizer.file.empty()) absolute("data.tokenizer.file", job.data.tokenizer.file);
  if (!job.train.init.empty()) absolute("train.init", job.train.init);
  return model::read_job(train_yaml, overrides).resolved_yaml;
}

}  // namespace

void check_resumed(const model::JobSpec& job, const data::Tokenizer* tokenizer, const std::filesystem::path& run) {
  if (std::filesystem::exists(run / "train.yaml")) {
    const std::string before = model::read_job(run / "train.yaml").model.fingerprint();
    if (before != job.model.fingerprint())
      throw Error(ErrorCode::invalid_config, "the run is of another model (" + before + ")", {.file = job.file.string(), .block = {}},
                  "the model section of " + (run / "train.yaml").string(), "train the other model under another name, --set name=...");
  }
  if (tokenizer == nullptr || !std::filesystem::exists(run / tokenizer->file_name())) return;
  const std::filesystem::path file = run / tokenizer->file_name();
  if (data::load_tokenizer(file)->fingerprint() != tokenizer->fingerprint())
    throw Error(ErrorCode::invalid_config, "the tokenizer is not the one that the run was trained with: the text or data.tokenizer changed",
                job.data.where, "the tokens that the model knows",
                text("go on with them: --set 'data.tokenizer={kind: ", file.extension() == ".model" ? "sentencepiece" : "hf",
                     ", file: ", file.string(), "}'"));
}

RunLock make_run(const std::filesystem::path& run, IfExists if_exists, const std::filesystem::path& train_yaml,
                 const std::vector<std::string>& overrides, const plan::Plan& plan, const cluster::ClusterSpec& cluster,
                 const data::Tokenizer* tokenizer) {
  const std::string yaml = yaml_of_run(train_yaml, overrides);
  RunLock lock = prepare_run(run, if_exists);
  if (tokenizer != nullptr) tokenizer->save(run / tokenizer->file_name());
  write_whole(real_file_system(), run / "train.yaml", yaml);
  write_whole(real_file_system(), run / "plan.json", plan::to_json(plan));
  write_whole(real_file_system(), run / "cluster.yaml", cluster::to_yaml(cluster));
  return lock;
}

}  // namespace tessera::observe
