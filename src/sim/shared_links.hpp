// Internal: which parts of the cluster a transfer uses, and how many equal transfers use them with it where ranks are folded.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "cluster/cluster.hpp"
#include "sim/engine.hpp"
#include "sim/fold.hpp"

namespace tessera::sim {

// A part of the cluster whose bandwidth transfers share: the bus inside a node, a node's adapter in one direction, one
// device's port in one direction.
struct Resource {
  enum class Kind { bus, adapter, port } kind = Kind::bus;
  int node = 0;         // or kind of node, when ranks are folded
  int rank = -1;        // ports: the rank or the program that stands for it
  bool outward = true;  // adapters and ports
  auto operator<=>(const Resource&) const = default;
};

// The arguments must outlive it.
class SharedLinks {
 public:
  SharedLinks(const std::vector<program::Program>& programs, const Fold& fold, const plan::Plan& plan, const cluster::ClusterSpec& cluster)
      : programs_(programs), fold_(fold), plan_(plan), cluster_(cluster) {}

  // `each`: the messages of a stage's ranks, for all of which a folded one stands, meet on links. Otherwise the message takes as long as it
  // does beside them, and only other messages meet it, where they enter or leave the same rank.
  const std::vector<Use>& of_message(int program, const program::Instruction& send, bool each);
  // `group`: index into Program::groups.
  const std::vector<Use>& of_collective(int program, int group, program::Op op);

 private:
  // Ranks that transfer together, first those that send.
  using Group = std::vector<int>;
  struct Physical {
    Resource::Kind kind;
    int group;
    int node;
    int rank;
    bool outward;
    auto operator<=>(const Physical&) const = default;
  };

  // One end of a transfer of a rank: its node's adapter, or a port of its own.
  Physical end_of(int rank, bool outward, bool shared) const;
  std::vector<Physical> physical_of_message(const Group& pair, bool each) const;
  std::vector<Physical> physical_of_collective(const Group& ranks) const;
  template <typename PhysicalOf>
  std::vector<Use> uses(const std::vector<Group>& groups, const PhysicalOf& physical_of);
  int number_of(const Resource& resource);
  std::vector<Group> peers(int program, int group, program::Op op) const;

  const std::vector<program::Program>& programs_;
  const Fold& fold_;
  const plan::Plan& plan_;
  const cluster::ClusterSpec& cluster_;
  std::map<Resource, int> numbers_;
  std::map<std::tuple<int, int, program::Op>, std::vector<Use>> of_messages_;     // program, peer, kind
  std::map<std::tuple<int, int, program::Op>, std::vector<Use>> of_collectives_;  // program, group, kind
};

}  // namespace tessera::sim
