// Internal: how many blocks each stage takes where pipeline ranks hold several stages, which need not be equally deep.
#pragma once

#include <vector>

#include "plan/plan.hpp"

namespace tessera::search {

// `ranks` pipeline ranks of `chunks` stages each, which stand there as the schedule says.
struct Placement {
  int ranks = 1;
  int chunks = 1;
  plan::Schedule schedule = plan::Schedule::one_f_one_b;

  int stages() const { return ranks * chunks; }
  int rank_of(int stage) const;
};

// Cuts are the first block of each stage and, last, the number of blocks. Needs a block for each stage.

// As even in blocks as can be, the deeper stages first.
std::vector<int> even_cuts(int blocks, int stages);
// The same of the blocks between the first and the last one, which their stages take besides.
std::vector<int> even_inner_cuts(int blocks, int stages);
// Every way to cut blocks into stages; none where those are more than `most`.
std::vector<std::vector<int>> all_cuts(int blocks, int stages, int most);
// The cuts in which one block less is in a stage of the pipeline rank and one more in another; stages between them move along.
std::vector<std::vector<int>> moves_from(const std::vector<int>& cuts, const Placement& placement, int rank);
// Moves single blocks from stage to stage, beginning with even_cuts, as long as the busiest pipeline rank becomes less busy or, failing
// that, the pipeline ranks or the stages more even. `seconds`: by block, on a pipeline rank of speed 1; `message`: of a stage whose next
// one is on other ranks; `speeds`: by pipeline rank. With blocks that are all alike but the first and the last one, and ranks of one speed,
// no cut has a less busy busiest rank.
std::vector<int> balanced_cuts(const std::vector<double>& seconds, double message, const std::vector<double>& speeds,
                               const Placement& placement);

}  // namespace tessera::search
