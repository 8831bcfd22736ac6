// Internal. Large collectives of groups on two levels (comm/levels.hpp). Each host sums its ranks' chunks in a ring of its own, so that one
// of its ranks, that of the chunk's column, holds the host's sum; then each column adds up these sums in a ring between the hosts. A gather
// goes the same way back. Of n hosts with k ranks each, an all-reduce of B bytes then sends 2 (n - 1) / n B from each host to the next, in
// 2 (n + k - 2) steps; one ring over all nk ranks sends 2 (nk - 1) / (nk) B over each link, over several of a host where the order of ranks
// goes back and forth, in 2 (nk - 1) steps.
// Cho, Finkler, Serrano, Kung, Hunter, "BlueConnect: Decomposing all-reduce for deep learning on heterogeneous network hierarchy", MLSys
// 2019.
#pragma once

#include "comm/network_ring.hpp"

namespace tessera::comm {

// One lane of a collective of a group that has levels. What a host does within itself goes on beside the messages between hosts.
// Reductions add in an order that depends on the levels and sizes alone.
Task all_reduce_on_levels(Ring ring);
Task reduce_scatter_on_levels(Ring ring);
// This rank's chunk is in its place already.
Task all_gather_on_levels(Ring ring);

}  // namespace tessera::comm
