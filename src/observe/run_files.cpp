#include "observe/run_files.hpp"

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "model/run_name.hpp"
#include "observe/resume.hpp"

namespace tessera::observe {
namespace {

// In YAML's single quotes, in which only they themselves are special.
std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("''") : std::string(1, c);
  return out + "'";
}

// A checkpoint's or a Hugging Face folder, or a run by its name.
std::string absolute_init(const std::filesystem::path& init) {
  if (init.is_absolute()) return init;
  for (const char* mark : {"manifest.json", "config.json"})
    if (std::filesystem::exists(init / mark)) return std::filesystem::absolute(init);
  const model::RunName run = model::find_run(init);
  return std::filesystem::absolute(run.folder).string() + (run.step ? text("@", *run.step) : "");
}

}  // namespace

std::string yaml_of_run(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides) {
  const model::JobSpec job = model::read_job(train_yaml, overrides);
  std::vector<std::string> all = overrides;
  const auto set = [&](const std::string& key, const std::string& path) { all.push_back(key + "=" + quoted(path)); };
  const auto absolute = [&](const std::string& key, const std::filesystem::path& path) { set(key, std::filesystem::absolute(path)); };
  if (!job.data.source.empty() && job.data.source != "synthetic") absolute("data.source", job.data.source);
  if (!job.data.tokenizer.file.empty()) absolute("data.tokenizer.file", job.data.tokenizer.file);
  if (!job.train.init.empty()) set("train.init", absolute_init(job.train.init));
  if (!job.on_end.empty() && job.on_end.front().find('/') != std::string::npos) absolute("on_end.0", job.on_end.front());
  if (job.cluster.kind == model::ClusterChoice::Kind::file) absolute("cluster", job.cluster.file);
  if (job.parallel.kind == model::ParallelChoice::Kind::plan_file) absolute("parallel", job.parallel.file);
  const ConfigNode model = ConfigNode::parse(job.resolved_yaml, train_yaml.string()).at("model");
  if (const auto config = model.find("hf")) {
    const std::filesystem::path written = config->as_string();
    absolute("model.hf", std::filesystem::exists(written) ? written : train_yaml.parent_path() / written);
  }
  return model::read_job(train_yaml, all).resolved_yaml;
}

RunLock make_run(const std::filesystem::path& run, IfExists if_exists, const model::JobSpec& job, const std::string& yaml,
                 const plan::Plan& plan, const cluster::ClusterSpec& cluster, const data::Dataset& dataset) {
  RunLock lock = prepare_run(run, if_exists);
  if (const data::Tokenizer* tokenizer = dataset.tokenizer()) tokenizer->save(run / tokenizer->file_name());
  write_data_identity(run, data_identity(job, dataset));
  write_whole(real_file_system(), run / "train.yaml", yaml);
  write_whole(real_file_system(), run / "plan.json", plan::to_json(plan));
  write_whole(real_file_system(), run / "cluster.yaml", cluster::to_yaml(cluster));
  return lock;
}

}  // namespace tessera::observe
