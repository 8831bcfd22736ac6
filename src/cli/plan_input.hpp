// What `plan` and `simulate` work on: the job, the cluster with its what-ifs, and the measured times that hold for it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cluster/cluster.hpp"
#include "model/job.hpp"
#include "profile/profile.hpp"

namespace tessera::cli {

// As the command line has it; empty where nothing was said.
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

// Throws what reading each of them throws. `said`: lines for the user about what was taken otherwise than one might think: CPUs beside
// accelerators that compute in 16 bits are left out, and accelerators compute in 32 bits where nothing else was said.
PlanInput read_plan_input(const PlanSource& source, std::string* said = nullptr);

// Of --set in the help of both commands.
inline constexpr const char* kSetHelp =
    "Override a key of the YAML, or with cluster.KEY=VALUE a what-if of the cluster: cluster.nodes=x2, cluster.memory=x0.5, "
    "cluster.link=tcp-10g, "
    "cluster.groups.0.network.bandwidth=100 Gbit/s (repeatable)";

}  // namespace tessera::cli
