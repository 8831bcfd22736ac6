// What `plan` and `simulate` work on: the job, the cluster after its what-ifs, and the measured times that are valid for it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "profile/profile.hpp"

namespace tessera::cli {

// The arguments of the command line; empty where one was not given.
struct PlanSource {
  std::filesystem::path yaml;
  std::filesystem::path cluster;  // takes the place of the YAML's cluster
  std::filesystem::path profile;
  std::vector<std::string> overrides;  // of the YAML; "cluster.KEY=VALUE" of the cluster
};

struct PlanInput {
  model::JobSpec job;
  cluster::ClusterSpec cluster;
  profile::Profile profile;
};

// Throws what reading each of them throws. Measures this host again when the profile in its cache is damaged. Writes notes for the user to
// `said`, a line each, about choices that may surprise: what model::warnings_of says, `parallel:` names a plan file, CPUs are left out
// beside accelerators that compute in 16 bits, and accelerators compute in 32 bits when the train.yaml names no precision.
PlanInput read_plan_input(const PlanSource& source, std::string* said = nullptr);

// The help of --set in both commands.
inline constexpr const char* kSetHelp =
    "Override a key of the YAML, or with cluster.KEY=VALUE a what-if of the cluster: cluster.nodes=x2, cluster.memory=x0.5, "
    "cluster.link=tcp-10g, "
    "cluster.groups.0.network.bandwidth=100 Gbit/s (repeatable)";

}  // namespace tessera::cli
