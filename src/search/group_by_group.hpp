// Internal to the search over blocks: outer choices that are near another one.
#pragma once

#include <vector>

#include "search/outer_choices.hpp"

namespace tessera::search {

// The outer choices that have one group more, at any place in the pipeline, with as many of its nodes as its stages can take. Of the widths
// that its stages may have the few with which they are about as fast as the others; with the same number of micro-batches, half and twice
// as many; under every schedule of one stage a rank.
std::vector<Outer> with_one_group_more(const BlockProblem& problem, const cost::CostModel& cost_model, const Outer& outer);

}  // namespace tessera::search
