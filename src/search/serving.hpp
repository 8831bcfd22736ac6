// Internal: which hosts hold the tables of a job that names no parameter servers, and with how many threads.
#pragma once

#include <functional>
#include <vector>

#include "search/search.hpp"

namespace tessera::search {

// A plan's servers: those of a host are in the process of its first rank. With rank 0 where no such host has a rank; none where `serving`
// is empty. `serving`: as SearchOptions::serving.
std::vector<plan::Server> servers_of(const std::vector<plan::RankPlace>& ranks, const std::vector<int>& serving,
                                     const cluster::ClusterSpec& cluster);

using SearchOn = std::function<SearchResult(const cluster::ClusterSpec& cluster, const SearchOptions& options)>;

// The result of `search` on the hosts, some of which hold the tables: a server on every host; or where the profile says what rows cost, all
// hosts, the slower half or the slowest one, with as many threads each as the job says or one and more, whichever gives the shortest step.
// A host computes as much slower as its servers take of its cores in a step.
SearchResult search_serving(const model::JobSpec& job, const cluster::ClusterSpec& cluster, const profile::Profile& profile,
                            const SearchOptions& options, const SearchOn& search);

}  // namespace tessera::search
