// Which ways through the readers an input takes: counts of branches, from calls that the compiler puts into every block of code of an
// instrumented build (-fsanitize-coverage=trace-pc). Nothing is ever seen in other builds.
#pragma once

#include <cstddef>

namespace tessera::fuzz {

// True where the rooms were compiled with it.
bool sees_coverage();
// Forgets what the last input did.
void begin_input();
// Whether the input since begin_input went a way that none before it went: a new pair of blocks, or one of the known pairs
// far more often (in powers of two, as in AFL).
bool was_new();
// Pairs of blocks that were seen so far.
std::size_t edges_seen();

}  // namespace tessera::fuzz
