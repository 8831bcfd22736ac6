// Internal: the resources of the cluster that a transfer uses, and, where ranks are folded, how many equal transfers use them at once.
#pragma once

#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "cluster/cluster.hpp"
#include "sim/engine.hpp"
#include "sim/fold.hpp"

namespace tessera::sim {

// The arguments must outlive it.
class SharedLinks {
 public:
  SharedLinks(const std::vector<program::Program>& programs, const Fold& fold, const plan::Plan& plan, const cluster::ClusterSpec& cluster)
      : programs_(programs), fold_(fold), plan_(plan), cluster_(cluster) {}

  // `each`: the messages of all ranks that a folded rank stands for meet on links. Otherwise the message's time already includes them, and
  // only other messages that enter or leave the same rank share its bandwidth; the wider stage has more ports for it.
  const std::vector<Use>& of_message(int program, const program::Instruction& send, bool each);
  // `group`: index into Program::groups.
  const std::vector<Use>& of_collective(int program, int group, program::Op op);

 private:
  // Ranks that transfer together; the sender comes first.
  using Group = std::vector<int>;
  enum class Exchange { collective, message, message_on_ports };
  // A part of the cluster whose bandwidth transfers share: the bus inside a node, a node's adapter in one direction, one device's port in
  // one direction.
  struct Resource {
    enum class Kind { bus, adapter, port } kind = Kind::bus;
    int group = 0;
    int node = 0;
    int rank = -1;        // ports
    bool outward = true;  // adapters and ports
    auto operator<=>(const Resource&) const = default;
  };

  std::set<Resource> resources_of(const Group& ranks, Exchange exchange) const;
  // `out`, `in`: the shares of a transfer's time that its bytes need to leave the sender's ranks and to enter the receiver's.
  std::vector<Use> uses(const std::vector<Group>& groups, Exchange exchange, double out = 1, double in = 1);
  std::vector<Group> peers(int program, int group, program::Op op) const;

  const std::vector<program::Program>& programs_;
  const Fold& fold_;
  const plan::Plan& plan_;
  const cluster::ClusterSpec& cluster_;
  std::map<Resource, int>
      numbers_;  // by what stands for a resource: the kind of its node in place of group and node, and a program's index
  std::map<std::tuple<int, int, program::Op>, std::vector<Use>> of_messages_;     // program, peer, kind
  std::map<std::tuple<int, int, program::Op>, std::vector<Use>> of_collectives_;  // program, group, kind
};

}  // namespace tessera::sim
