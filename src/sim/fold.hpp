// Internal: which ranks do the same at the same time.
#pragma once

#include <vector>

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"

namespace tessera::sim {

// One rank of every pipeline rank that stands for all ranks of its stages, or every rank for itself.
struct Fold {
  std::vector<int> ranks;       // that are simulated, ascending
  std::vector<int> program_of;  // by rank: index into `ranks`
  // By rank: nodes that hold equal numbers of ranks of each pipeline rank are of one kind; unfolded, each is its own.
  std::vector<int> node_kind;
  bool folded = false;
};

Fold no_fold(const plan::Plan& plan);
// Folds when, in every stage, all ranks compute equally fast, stand on nodes of one kind and reach their tensor-parallel,
// data-parallel and pipeline peers over equal links, and all stages are cut alike; otherwise no_fold.
Fold fold_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster);
// Folds in any case: the first rank of each pipeline rank stands for all. For costs that depend on the devices and the width of a stage,
// and not on the links of single ranks.
Fold fold_by_pipeline_rank(const plan::Plan& plan);

// The tensor-parallel groups of a stage, one for each replica; its data-parallel groups, one for each tensor-parallel index; its ranks with
// those of equal index of another stage.
std::vector<std::vector<int>> tensor_groups(const plan::Stage& stage);
std::vector<std::vector<int>> data_groups(const plan::Stage& stage);
std::vector<std::vector<int>> pairs(const plan::Stage& stage, const plan::Stage& other);

}  // namespace tessera::sim
