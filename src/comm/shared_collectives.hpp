// Internal. The algorithms through shared memory. Data goes in blocks: each rank shows its block, reduces its own share of
// everybody's, and takes the others' shares: every byte is copied once in and once out, and reductions go in rank order.
#pragma once

#include "comm/shared_engine.hpp"

namespace tessera::comm {

Task run_in_shared_memory(Channel& channel, Operation& operation);

}  // namespace tessera::comm
