// Internal. The algorithms over messages. Small: recursive doubling (all-reduce), binomial tree (broadcast), direct exchange.
// Large: rings cut into lanes, so that one lane's sums overlap with another's messages, and a pipelined chain (broadcast).
// Rings: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009).
#pragma once

#include "comm/network.hpp"
#include "comm/operation.hpp"

namespace tessera::comm {

// The whole operation as a coroutine. Reductions add in an order that depends on ranks and sizes alone.
Task run_over_network(Network& network, Operation& operation);

}  // namespace tessera::comm
