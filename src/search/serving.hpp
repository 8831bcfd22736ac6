// Internal: chooses the hosts that hold the tables of a job without named parameter servers, and their threads.
#pragma once

#include <functional>

#include "search/search.hpp"

namespace tessera::search {

using SearchOn = std::function<SearchResult(const cluster::ClusterSpec& cluster, const SearchOptions& options)>;

// The result of `search` with servers: those that options.serving asks for; or, if the profile has measured rows, the best of all hosts,
// the slower half and the slowest host, with as many threads each as the job says, or one, two or four; otherwise one on every host. The
// search treats a host as slower by the share of its cores that its servers take; the plans are then priced exactly.
SearchResult search_serving(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                            const SearchOptions& options, const SearchOn& search);

}  // namespace tessera::search
