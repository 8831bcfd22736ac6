// The clocks of the ranks' hosts.
#pragma once

#include "comm/comm.hpp"

namespace tessera::train {

// Whether the ranks are on several hosts. Called by all ranks alike.
bool on_several_hosts(comm::Communicator& comm);

// What rank 0's clock is ahead of this rank's: nothing on its host, elsewhere what the two show when all have met, which is within a
// message's time. Called by all ranks alike.
Seconds ahead(comm::Communicator& comm);

}  // namespace tessera::train
