// Internal: which hosts hold the tables of a job that names no parameter servers, and with how many threads.
#pragma once

#include <functional>

#include "search/search.hpp"

namespace tessera::search {

using SearchOn = std::function<SearchResult(const cluster::ClusterSpec& cluster, const SearchOptions& options)>;

// The result of `search`, with servers: as options.serving says; or one on every host; or where the profile says what rows cost, on all
// hosts, the slower half or the slowest one, with as many threads each as the job says or one, two or four, whichever gives the shortest
// step. The search takes a host for as much slower as its servers take of its cores; the plans are then priced as they are.
SearchResult search_serving(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                            const SearchOptions& options, const SearchOn& search);

}  // namespace tessera::search
