// Internal: the search for accelerators.
#pragma once

#include "plan/plan.hpp"
#include "search/search.hpp"

namespace tessera::search {

SearchResult search_accelerators(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const SearchOptions& options);

}  // namespace tessera::search
