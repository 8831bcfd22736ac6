#include "cli/measured_profile.hpp"
#include "model/forms.hpp"
#include "search/search.hpp"

#include <unistd.h>
#include <algorithm>
#include <cstdio>
#include <functional>

#include "base/file_system.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "base/temporary_folder.hpp"
#include "cli/workers.hpp"
#include "control/local_launcher.hpp"
#include "data/data.hpp"
#include "profile/mean.hpp"

namespace tessera::cli {
namespace {

template <typename Item>
void append(std::vector<Item>& to, const std::vector<Item>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

std::vector<std::string> measure_arguments(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides,
                                           const std::filesystem::path& result, int threads, Seconds budget) {
  std::vector<std::string> arguments = {"measure",   train_yaml.string(),     "--output", result.string(),
                                        "--threads", std::to_string(threads), "--budget", std::to_string(budget.value)};
  for (const auto& setting : overrides) arguments.insert(arguments.end(), {"--set", setting});
  return arguments;
}

void merge(profile::Profile& merged, const profile::Profile& measured) {
  append(merged.blocks, measured.blocks);
  append(merged.communication, measured.communication);
  append(merged.optimizers, measured.optimizers);
  merged.model_fingerprint = measured.model_fingerprint;
  if (merged.rows.empty()) merged.rows = measured.rows;
  if (merged.speeds.empty()) merged.speeds = measured.speeds;
  merged.process_baseline = std::max(merged.process_baseline, measured.process_baseline);
  merged.overlap_slowdown = std::max(merged.overlap_slowdown, measured.overlap_slowdown);
}

std::string name_of(const search::WorkerShape& shape) {
  return text(shape.workers, " worker", shape.workers == 1 ? "" : "s", " of ", shape.threads, " thread", shape.threads == 1 ? "" : "s");
}

// What `measure_one` finds of each shape in `budget`. Of several shapes each is measured twice, there and back, for half as long: how fast
// a host is changes within a minute, by more than plans of different shapes differ.
profile::Profile measured_in_turns(
    const std::vector<search::WorkerShape>& shapes, Seconds budget,
    const std::function<profile::Profile(const search::WorkerShape&, Seconds budget, const std::string& turn)>& measure_one) {
  const std::size_t count = shapes.size();
  if (count == 1) return measure_one(shapes.front(), budget, "");
  std::vector<profile::Profile> found(count);
  for (std::size_t turn = 0; turn < 2 * count; ++turn) {
    const std::size_t i = turn < count ? turn : 2 * count - 1 - turn;
    const profile::Profile now = measure_one(shapes[i], budget / 2, text(" (", turn + 1, " of ", 2 * count, ")"));
    found[i] = turn < count ? now : profile::mean_of(found[i], now);
  }
  profile::Profile merged;
  for (const profile::Profile& of_shape : found) merge(merged, of_shape);
  return merged;
}

// {group, node} of the hosts that are measured together: this one, or all on which the workers of the first group's stand alike.
std::vector<std::pair<int, int>> hosts_of(const cluster::ClusterSpec& cluster, bool several) {
  if (!several) return {{0, 0}};
  std::vector<std::pair<int, int>> out;
  const cluster::ResourceGroup& first = cluster.groups.front();
  for (std::size_t g = 0; g < cluster.groups.size(); ++g) {
    const cluster::ResourceGroup& group = cluster.groups[g];
    if (group.device.cores != first.device.cores) continue;
    for (int node = 0; node < group.nodes; ++node) out.emplace_back(static_cast<int>(g), node);
  }
  return out;
}

}  // namespace

std::filesystem::path cached_profile_path(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Workers& workers) {
  const auto worker = control::sibling_program("tessera-worker");
  std::string key = text(job.model.fingerprint(), ' ', cluster.fingerprint(), ' ', job.train.global_batch, ' ',
                         model::name_of(job.train.precision), ' ', static_cast<int>(job.train.optimizer.kind), ' ',
                         std::filesystem::file_size(worker), ' ', std::filesystem::last_write_time(worker).time_since_epoch().count());
  if (!job.model.plugin.empty()) key += " " + hash128_hex(read_whole(job.model.plugin));
  if (model::reads_clicks(job.model)) {  // whose rows are measured on the job's data
    const model::ParameterServerSpec& servers = job.parameter_servers;
    key += text(' ', servers.rows, ' ', servers.wire, ' ', servers.optimizer.kind, ' ', servers.optimizer.row_moment, ' ',
                servers.lifecycle.has_value());
    for (const model::SourceSpec& source : job.data.sources) key += " " + std::filesystem::absolute(source.path).string();
  }
  for (const search::WorkerShape& shape : search::worker_shapes(job, cluster)) key += text(' ', shape.workers, 'x', shape.threads);
  if (workers.on_hosts()) key += " on " + workers.name();
  return data::default_cache_dir() / ("profile-" + hash128_hex(key) + ".json");
}

profile::Profile measure(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides, const model::JobSpec& job,
                         const cluster::ClusterSpec& cluster, const Workers& workers, std::optional<Seconds> budget) {
  const std::vector<std::pair<int, int>> hosts = hosts_of(cluster, workers.on_hosts());
  const auto of_shape = [&](const search::WorkerShape& shape, Seconds seconds, const std::string& turn) {
    log::show(text("measuring ", hosts.size() > 1 ? text(hosts.size(), " hosts with ") : "", name_of(shape), turn));
    const auto result = workers.scratch() / text("profile-", shape.workers, "x", shape.threads, ".json");
    std::vector<plan::RankPlace> places;
    for (const auto& [group, node] : hosts)
      for (int rank = 0; rank < shape.workers; ++rank) places.push_back({group, node, rank, shape.threads});
    std::vector<std::string> arguments = measure_arguments(train_yaml, overrides, result, shape.threads, seconds);
    if (hosts.size() > 1)
      arguments.insert(arguments.end(), {"--link", cluster.groups.front().network.name, "--per-host", std::to_string(shape.workers),
                                         "--hosts", std::to_string(hosts.size())});
    workers.run({.arguments = arguments, .places = places, .needed = {train_yaml}}, cluster);
    return profile::load_profile(result);
  };
  profile::Profile merged = measured_in_turns(search::worker_shapes(job, cluster), budget.value_or(Seconds(6)), of_shape);
  merged.host = cluster.name;
  return merged;
}

profile::Profile measure_hosts(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides,
                               const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::string& launcher,
                               std::optional<Seconds> budget) {
  const cluster::ResourceGroup& group = cluster.groups.front();
  const TemporaryFolder scratch;
  const auto of_shape = [&](const search::WorkerShape& shape, Seconds seconds, const std::string& turn) {
    log::show(text("measuring ", group.nodes, " hosts with ", name_of(shape), turn));
    const auto result = scratch.path() / text("profile-", shape.workers, "x", shape.threads, ".json");
    std::vector<std::string> arguments = {control::sibling_program("tessera-worker").string()};
    for (const std::string& argument : measure_arguments(train_yaml, overrides, result, shape.threads, seconds))
      arguments.push_back(argument);
    // The hosts may be held to a share of a core.
    arguments.insert(arguments.end(), {"--link", group.network.name, "--per-host", std::to_string(shape.workers), "--hosts",
                                       std::to_string(group.nodes), "--sample", "0.25"});
    control::WorkerCommand command;
    command.arguments = {"/bin/sh", "-c", "exec " + launcher + " \"$@\"", "launcher"};
    command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
    command.environment = {{"OMP_NUM_THREADS", std::to_string(shape.threads)}};
    // The user's own, where there is one: other hosts may have it from elsewhere than from this launcher.
    if (const auto secret = secret_from_environment()) command.environment.emplace_back(kSecretVariable, *secret);
    control::run_workers({command}, {});
    return profile::load_profile(result);
  };
  // There is no second chance to measure what a small budget leaves out.
  profile::Profile merged = measured_in_turns(search::worker_shapes(job, cluster), budget.value_or(Seconds(300)), of_shape);
  merged.host = cluster.name;
  return merged;
}

CachedProfile load_cached_profile(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return {};
  try {
    return {profile::load_profile(path), false};
  } catch (const Error& error) {
    std::fprintf(stderr, "warning: the cached profile of this host is damaged: %s\n", error.what());
    return {std::nullopt, true};
  }
}

profile::Profile measure_into_cache(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides,
                                    const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Workers& workers) {
  profile::Profile profile = measure(train_yaml, overrides, job, cluster, workers);
  const std::filesystem::path path = cached_profile_path(job, cluster, workers);
  write_named(path, profile::to_json(profile));
  return profile;
}

}  // namespace tessera::cli
