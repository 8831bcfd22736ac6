// Internal: what each instruction costs and which parts of the cluster it uses.
#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "plan/prices.hpp"
#include "program/program.hpp"

namespace tessera::sim {

// A part of the cluster whose bandwidth transfers share: the bus inside a node, a node's adapter in one direction, one
// device's port in one direction.
struct Resource {
  enum class Kind { bus, adapter, port } kind = Kind::bus;
  int group = 0;
  int node = 0;
  int rank = -1;       // ports
  bool outward = true; // adapters and ports
  auto operator<=>(const Resource&) const = default;
};

struct Transfer {
  double seconds = 0;  // alone on its links
  std::vector<Resource> resources;
};

struct Compute {
  double seconds = 0;  // undisturbed
  Transfer exchange;   // tensor-parallel, on the critical path
};

class Work {
 public:
  Work(const std::vector<program::Program>& programs, const plan::Plan& plan, plan::Prices& prices);

  Compute compute(int rank, const program::Instruction& instruction);
  // From the sender to the receiver.
  Transfer message(int from, int to, std::int64_t bytes) const;
  Transfer collective(const program::Instruction& instruction, const std::vector<int>& members) const;
  plan::StageBytes memory(int rank);

 private:
  void add_resources(const std::vector<int>& ranks, bool outward, bool inward, std::vector<Resource>& out) const;

  const std::vector<program::Program>& programs_;
  const plan::Plan& plan_;
  plan::Prices& prices_;
  std::vector<plan::Place> places_;
};

}  // namespace tessera::sim
