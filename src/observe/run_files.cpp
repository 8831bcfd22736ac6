#include "observe/run_files.hpp"

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "data/tokenizer.hpp"
#include "observe/resume.hpp"

namespace tessera::observe {

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
