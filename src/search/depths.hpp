// Internal: how many blocks each stage takes where pipeline ranks hold several stages, which need not be equally deep.
#pragma once

#include <vector>

#include "plan/plan.hpp"

namespace tessera::search {

// `ranks` pipeline ranks of `chunks` stages each, placed as the schedule says.
struct Placement {
  int ranks = 1;
  int chunks = 1;
  plan::Schedule schedule = plan::Schedule::one_f_one_b;

  int stages() const { return ranks * chunks; }
  int rank_of(int stage) const;
};

// Cuts are the first block of each stage, followed by the number of blocks. There is a block for each stage.

// The evenest cut by number of blocks; the deeper stages come first.
std::vector<int> even_cuts(int blocks, int stages);
// Cuts the blocks between the first and the last one evenly; those two come on top for their stages.
std::vector<int> even_inner_cuts(int blocks, int stages);
// Every way to cut blocks into stages; empty if there are more than `most`.
std::vector<std::vector<int>> all_cuts(int blocks, int stages, int most);
// The cuts that move one block from a stage of the pipeline rank to a stage of another rank; stages between the two shift along.
std::vector<std::vector<int>> moves_from(const std::vector<int>& cuts, const Placement& placement, int rank);
// Moves single blocks from stage to stage, beginning with even_cuts, as long as the busiest pipeline rank becomes less busy or, failing
// that, the pipeline ranks or the stages more even. `seconds`: by block, on a pipeline rank of speed 1; `message`: of a stage whose next
// one is on other ranks; `speeds`: by pipeline rank. With blocks that are all alike but the first and the last one, and ranks of one speed,
// no cut has a less busy busiest rank.
std::vector<int> balanced_cuts(const std::vector<double>& seconds, double message, const std::vector<double>& speeds,
                               const Placement& placement);

}  // namespace tessera::search
