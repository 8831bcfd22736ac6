// Internal to the check.
#pragma once

#include <string>
#include <vector>

#include "program/program.hpp"

namespace tessera::program {

// Throws invalid_config with the label of the instruction.
[[noreturn]] void refuse(const Program& program, int index, const std::string& why);

// Checks that every micro-batch passes every block once and in order, that passes and messages wait for what they need, that dependencies
// point back, and that every bucket is stepped once. Throws invalid_config, which names the rank and the instruction.
void check_passes(const std::vector<Program>& programs);

}  // namespace tessera::program
