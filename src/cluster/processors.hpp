// The processors of this host that computing may use.
#pragma once

#include <vector>

namespace tessera::cluster {

// One processor (as the operating system counts them) of every physical core that this process may run on: two threads of one core
// share its vector units. Empty where the host does not tell.
std::vector<int> usable_processors();

}  // namespace tessera::cluster
