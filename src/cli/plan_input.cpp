#include "cli/plan_input.hpp"

#include <algorithm>

#include "cli/measured_profile.hpp"
#include "model/warnings.hpp"

namespace tessera::cli {
namespace {

// With `local` and `lab` the YAML says how many workers there are, whatever the cluster holds.
void refuse_without_effect(const model::ClusterChoice& choice, const cluster::ClusterSpec& before, const cluster::ClusterSpec& after) {
  const bool local = choice.kind == model::ClusterChoice::Kind::local;
  if (!local && choice.kind != model::ClusterChoice::Kind::lab) return;
  for (std::size_t g = 0; g < std::min(before.groups.size(), after.groups.size()); ++g) {
    const bool nodes = local && before.groups[g].nodes != after.groups[g].nodes;
    if (nodes || before.groups[g].devices_per_node != after.groups[g].devices_per_node)
      throw Error(ErrorCode::invalid_config,
                  text("--set cluster.", nodes ? "nodes" : "devices_per_node", ": the YAML's cluster says how many workers there are"),
                  choice.where, local ? "cluster.local.devices=N" : "cluster.lab.hosts=N");
  }
}

bool same_speed(const cluster::Device& a, const cluster::Device& b) {
  return a.name == b.name && a.vendor == b.vendor && a.peak == b.peak && a.memory_bandwidth == b.memory_bandwidth;
}

// Where accelerators are to compute in 32 bits because nothing else was said.
std::string precision_note(const PlanInput& input) {
  const auto train = ConfigNode::parse(input.job.resolved_yaml, "train.yaml").find("train");
  if (input.job.train.precision != model::Precision::f32 || (train && train->is_map() && train->has("precision"))) return {};
  const auto precision = cluster::fast_precision(input.cluster);
  if (!precision) return {};
  return text("note: planned in fp32, as train.precision says nothing; these devices are faster in ", model::name_of(*precision),
              ": --set train.precision=", model::name_of(*precision), "\n");
}

// The plan file that the YAML names is what `train` takes.
std::string plan_file_note(const model::ParallelChoice& parallel) {
  if (parallel.kind != model::ParallelChoice::Kind::plan_file) return {};
  return text("note: planned as with parallel: auto; `train` takes the plan in ", parallel.file.string(),
              std::filesystem::exists(parallel.file) ? "" : ", which does not exist yet", "\n");
}

// The named profile. Otherwise the one in this host's cache, measured again where it is damaged, unless the cluster is another one.
// Otherwise an empty one: the roofline then says all times.
profile::Profile profile_for(const PlanSource& source, const std::vector<std::string>& overrides, const model::JobSpec& job,
                             const cluster::ClusterSpec& cluster) {
  if (!source.profile.empty()) return profile::load_profile(source.profile);
  if (!source.cluster.empty()) return {};
  std::filesystem::path path;
  try {
    path = cached_profile_path(job, cluster, Workers({}));
  } catch (const Error& error) {
    // Planning works without the worker; then there is no profile of its making either.
    if (error.code() != ErrorCode::not_found) throw;
    return {};
  }
  CachedProfile cached = load_cached_profile(path);
  if (cached.damaged) return measure_into_cache(source.yaml, overrides, job, cluster, Workers({}));
  return cached.profile ? std::move(*cached.profile) : profile::Profile();
}

std::string notes(const PlanInput& input, const cluster::ClusterSpec& whole) {
  std::string out = plan_file_note(input.job.parallel);
  for (const std::string& warning : model::warnings_of(input.job)) out += text("warning: ", warning, "\n");
  if (input.cluster.groups.size() < whole.groups.size())
    for (const cluster::ResourceGroup& group : whole.groups)
      if (cluster::is_left_out(whole, group, input.job.train.precision))
        out += text("note: the CPUs of ", group.name, " are left out beside accelerators\n");
  return out + precision_note(input);
}

}  // namespace

PlanInput read_plan_input(const PlanSource& source, std::string* said) {
  std::vector<std::string> of_job;
  std::vector<std::string> of_cluster;
  for (const std::string& setting : source.overrides) (cluster::is_cluster_override(setting) ? of_cluster : of_job).push_back(setting);
  PlanInput input{model::read_job(source.yaml, of_job), {}, {}};
  if (!source.cluster.empty()) input.job.cluster = {model::ClusterChoice::Kind::file, source.cluster, 0, 0, 0, 0, input.job.cluster.where};
  const cluster::ClusterSpec before = cluster::resolve(input.job.cluster);
  input.cluster = cluster::with_overrides(before, of_cluster);
  refuse_without_effect(input.job.cluster, before, input.cluster);
  input.profile = profile_for(source, of_job, input.job, before);
  const bool same = std::equal(before.groups.begin(), before.groups.end(), input.cluster.groups.begin(), input.cluster.groups.end(),
                               [](const auto& a, const auto& b) { return same_speed(a.device, b.device); });
  if (!same) {
    input.profile.blocks.clear();
    input.profile.optimizers.clear();
    input.profile.speeds.clear();
  }
  input.cluster = profile::at_measured_speeds(input.cluster, input.profile);
  const cluster::ClusterSpec whole = input.cluster;
  if (const auto kind = input.job.cluster.kind; kind == model::ClusterChoice::Kind::file || kind == model::ClusterChoice::Kind::automatic)
    std::erase_if(input.cluster.groups, [&](const auto& group) { return cluster::is_left_out(whole, group, input.job.train.precision); });
  if (said != nullptr) *said = notes(input, whole);
  return input;
}

}  // namespace tessera::cli
