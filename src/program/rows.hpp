// Internal to the compiler: what brings rows of tables from parameter servers to a rank's passes, and takes their gradients back.
#pragma once

#include <vector>

#include "program/program.hpp"

namespace tessera::program {

// Appends the pull of what all micro-batches read in `block`, which has the tables. Before the passes are there.
void add_pull(Program& program, int block, const model::BlockSpec& tables);
// Has the first pass that reads them wait for the pull: of its own step, or with Program::rows_ahead of the one before. Returns the pull's
// index.
int wait_for_pull(Program& program);
// Does so, and appends the push, which waits for `after`; the next step's pull waits for it.
void add_push(Program& program, int block, std::vector<int> after);

}  // namespace tessera::program
