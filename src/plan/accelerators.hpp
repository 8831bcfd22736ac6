// Internal: the search for accelerators.
#pragma once

#include "plan/plan.hpp"

namespace tessera::plan {

SearchResult search_accelerators(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const SearchOptions& options);

}  // namespace tessera::plan
