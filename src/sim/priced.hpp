// Internal: costs from the profile and the cluster's links.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "cost/prices.hpp"
#include "sim/costs.hpp"
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
class PricedCosts final : public Costs {
 public:
  PricedCosts(const std::vector<program::Program>& programs, const Fold& fold, const plan::Plan& plan, cost::Prices& prices);

  Compute compute(int program, const program::Instruction& instruction) override;
  Transfer message(int program, const program::Instruction& send) override;
  Transfer collective(int program, const program::Instruction& instruction) override;
  program::MemoryBudget memory(int program) override;

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

  Compute price(int program, const program::Instruction& instruction);
  std::vector<Physical> of_message(const Group& pair) const;
  std::vector<Physical> of_collective(const Group& ranks) const;
  template <typename PhysicalOf>
  std::vector<Use> uses(const std::vector<Group>& groups, const PhysicalOf& physical_of);
  int number_of(const Resource& resource);
  std::vector<Group> peers(int program, int group, program::Op op) const;

  const std::vector<program::Program>& programs_;
  const Fold& fold_;
  const plan::Plan& plan_;
  cost::Prices& prices_;
  std::vector<cost::Place> places_;
  std::map<Resource, int> numbers_;
  std::map<std::tuple<int, program::Op, int, int, int>, Compute> computed_;
  std::map<std::tuple<int, int, program::Op>, std::vector<Use>> message_uses_;     // program, peer, kind
  std::map<std::tuple<int, int, program::Op>, std::vector<Use>> collective_uses_;  // program, group, kind
};

}  // namespace tessera::sim
