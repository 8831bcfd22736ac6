#include "comm/traffic.hpp"

#include "base/error.hpp"

namespace tessera::comm {

Traffic& operator+=(Traffic& sum, const Traffic& other) {
  sum.messages += other.messages;
  sum.collectives += other.collectives;
  sum.bytes += other.bytes;
  return sum;
}

Bytes bytes_on_network(std::string_view operation, int ranks, Bytes buffer) {
  if (operation == "send") return buffer;
  if (operation == "all_reduce" && buffer.value <= largest_doubled(ranks)) {
    int power = 1;
    int exchanges = 0;
    for (; power * 2 <= ranks; power *= 2) ++exchanges;
    // The ranks beyond a power of two give theirs to a neighbour, and get the sum from it.
    return buffer * (2 * (ranks - power) + power * exchanges);
  }
  if (operation == "all_reduce") return buffer * (2 * (ranks - 1));
  ensure(operation == "reduce_scatter" || operation == "all_gather" || operation == "all_to_all",
         text("what a ", operation, " sends is not known"));
  return buffer * (ranks - 1);
}

bool runs_on_levels(std::string_view operation, int ranks, Bytes buffer) {
  if (operation == "all_reduce") return buffer.value > largest_doubled(ranks);
  return (operation == "reduce_scatter" || operation == "all_gather") && buffer.value / ranks > kLargestDirect;
}

Bytes bytes_between_hosts(std::string_view operation, int hosts, Bytes buffer) {
  ensure(operation == "all_reduce" || operation == "reduce_scatter" || operation == "all_gather",
         text("no ", operation, " runs on two levels"));
  return buffer * ((operation == "all_reduce" ? 2 : 1) * (hosts - 1));
}

}  // namespace tessera::comm
