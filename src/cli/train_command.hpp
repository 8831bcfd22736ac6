// Internal: everything that stands between a train.yaml and running workers.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/hosts.hpp"
#include "cluster/cluster.hpp"
#include "data/data.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "search/search.hpp"

namespace tessera::cli {

// The plan of a job on its cluster, in this order: the file given, the file that `parallel:` names, or a search with the
// profile of the hosts that `workers` run on, which is measured first when it is not in the cache (and `measure` allows it). `lengths`: as
// search::SearchOptions says.
struct ChosenPlan {
  plan::Plan plan;
  cluster::ClusterSpec cluster;                // with the speeds of its hosts, where they were measured
  profile::Profile profile;                    // what the search read
  std::optional<search::SearchResult> search;  // when it was searched
};
ChosenPlan choose_plan(const std::filesystem::path& train_yaml, const std::vector<std::string>& overrides, const model::JobSpec& job,
                       const cluster::ClusterSpec& cluster, const std::optional<std::filesystem::path>& plan_file, bool measure,
                       const Workers& workers, const std::vector<std::int64_t>& lengths);

// runs/NAME. Throws invalid_config when `name` is not plain (base/plain_name.hpp).
std::filesystem::path run_folder(const std::string& name);

// The job's samples; builds the token cache, with progress on stderr. Throws invalid_config where they do not make one batch.
std::unique_ptr<data::Dataset> prepare_data(const model::JobSpec& job);
// For search::SearchOptions.
std::vector<std::int64_t> drawn_lengths(const model::JobSpec& job, const data::Dataset& dataset);
// The same when nothing is trained: empty, with a note, if the job's texts are not here or do not fill a batch.
std::vector<std::int64_t> lengths_if_known(const model::JobSpec& job);

}  // namespace tessera::cli
