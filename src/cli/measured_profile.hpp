// Internal: the profile that a plan is made with: measured on this host by short-lived workers, and cached by content.
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "cli/hosts.hpp"
#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "profile/profile.hpp"

namespace tessera::cli {

// Measures each shape with real workers and merges the results: on this host or, where `workers` run on several, on all hosts with as many
// cores as the first at once, with the link between them. Of several shapes each is measured twice, in turns, and the means count.
// `train_yaml` is a file the workers can read. `budget`: for the blocks of each shape, and again for its communication, roughly; left
// out, some seconds. Progress goes to stderr.
profile::Profile measure(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides, const model::JobSpec& job,
                         const cluster::ClusterSpec& cluster, const Workers& workers, std::optional<Seconds> budget = {});

// The same on all hosts of the cluster's first group at once, with the link between them. `launcher`: the shell command that starts the
// words after it once for every worker and gives each RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without `budget`: some minutes.
profile::Profile measure_hosts(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides,
                               const model::JobSpec& job, const cluster::ClusterSpec& cluster, const std::string& launcher,
                               std::optional<Seconds> budget = {});

// Where the profile of this job on this host is cached; changes with the model, the batch, the precision, the optimizer,
// the worker's build and the hosts.
std::filesystem::path cached_profile_path(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Workers& workers);

struct CachedProfile {
  std::optional<profile::Profile> profile;
  bool damaged = false;  // there is a file that cannot be read; stderr has been told why
};
CachedProfile load_cached_profile(const std::filesystem::path& path);

// Measures, and writes the profile into the cache.
profile::Profile measure_into_cache(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides,
                                    const model::JobSpec& job, const cluster::ClusterSpec& cluster, const Workers& workers);

}  // namespace tessera::cli
