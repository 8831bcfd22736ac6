// Internal: the two timelines of the page of a run.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"
#include "program/read_trace.hpp"

namespace tessera::cli {

// `measured` is step number `step` of the `traced` steps of a trace; null where there is none, likewise `predicted`, `plan` and `cluster`.
// `alike`: both hold the same instructions, so that the page can set them beside each other. Of many ranks those of which each stands for
// the ranks that hold the same stages.
nlohmann::ordered_json timelines_of(const program::TracedStep* measured, std::int64_t step, std::size_t traced,
                                    const program::TracedStep* predicted, const plan::Plan* plan, const cluster::ClusterSpec* cluster,
                                    bool alike);

}  // namespace tessera::cli
