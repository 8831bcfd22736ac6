// Internal: finds ranks that do the same at the same time, so that one can be simulated for all of them.
#pragma once

#include <vector>

#include "cluster/cluster.hpp"
#include "plan/plan.hpp"

namespace tessera::sim {

// The ranks to simulate: one for each pipeline rank, which stands for all ranks of its stages; or every rank.
struct Fold {
  std::vector<int> ranks;       // the simulated ranks, ascending
  std::vector<int> program_of;  // by rank: index into `ranks`
  // By rank: the kind of its node. Nodes with equal numbers of ranks of each pipeline rank are of one kind; unfolded, every node is its own
  // kind.
  std::vector<int> node_kind;
  bool folded = false;
};

Fold no_fold(const plan::Plan& plan);
// Folds when, in every stage, all ranks compute equally fast, stand on nodes of one kind and reach their tensor-parallel,
// data-parallel and pipeline peers over equal links, and all stages are cut alike; otherwise no_fold.
Fold fold_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster);
// Always folds: the first rank of each pipeline rank stands for all of them. For costs that depend on the devices and the width of a stage,
// not on the links of single ranks.
Fold fold_by_pipeline_rank(const plan::Plan& plan);

// A stage's tensor-parallel groups, one for each replica; its data-parallel groups, one for each tensor-parallel index; and the pairs of
// its ranks with the ranks of equal index in another stage.
std::vector<std::vector<int>> tensor_groups(const plan::Stage& stage);
std::vector<std::vector<int>> data_groups(const plan::Stage& stage);
std::vector<std::vector<int>> pairs(const plan::Stage& stage, const plan::Stage& other);

}  // namespace tessera::sim
