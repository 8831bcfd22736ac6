// Internal: cuts a row of blocks into stages.
#pragma once

#include <vector>

namespace tessera::search {

// The first block of each of `stages` stages (and, last, the number of blocks) such that the most expensive stage is as cheap
// as it can be; among such cuts one whose sum of squares is small. Exact, by dynamic programming over
// (stages, blocks). Needs 1 <= stages <= costs.size().
std::vector<int> balance(const std::vector<double>& costs, int stages);

// Every cut of `blocks` blocks into `stages` stages, in the same form, when there are at most `most` of them; else none.
std::vector<std::vector<int>> all_cuts(int blocks, int stages, int most);

}  // namespace tessera::search
