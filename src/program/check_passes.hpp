// Internal to the check.
#pragma once

#include <string>
#include <vector>

#include "program/program.hpp"

namespace tessera::program {

// "rank 3 instruction 17 (forward of micro-batch 2)"
std::string label(const Program& program, int index);
[[noreturn]] void refuse(const Program& program, int index, const std::string& why);

// Every pass of every micro-batch over every block once and in order; passes and messages wait for what they need;
// dependencies point back; every bucket is stepped once.
void check_passes(const std::vector<Program>& programs);

}  // namespace tessera::program
