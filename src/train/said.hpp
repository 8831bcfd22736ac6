// internal: words that one rank tells others.
#pragma once

#include <string>

#include "comm/comm.hpp"

namespace tessera::train {

// What this rank of the group says, on all of its ranks, which all call it; the words of others count for nothing.
std::string said_by(int rank, std::string words, const comm::Group& group);

}  // namespace tessera::train
