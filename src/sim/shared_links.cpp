#include "sim/shared_links.hpp"

#include <algorithm>

namespace tessera::sim {

using program::Instruction;
using program::Op;
using program::Program;

std::set<SharedLinks::Resource> SharedLinks::resources_of(const Group& ranks, Exchange exchange) const {
  const auto node_of = [&](int rank) { return std::pair(plan_.ranks[rank].group, plan_.ranks[rank].node); };
  const bool one_node = std::ranges::all_of(ranks, [&](int rank) { return node_of(rank) == node_of(ranks.front()); });
  std::set<Resource> out;
  for (const int rank : ranks) {
    const auto [group, node] = node_of(rank);
    const cluster::Link& link = one_node ? cluster_.groups[group].inside : cluster_.groups[group].network;
    const bool shared = link.shared && exchange != Exchange::message_on_ports;
    if (one_node && shared) return {Resource{Resource::Kind::bus, group, node}};
    for (const bool outward : {true, false})
      if (exchange == Exchange::collective || outward == (rank == ranks.front()))
        out.insert(shared ? Resource{Resource::Kind::adapter, group, node, -1, outward}
                          : Resource{Resource::Kind::port, group, node, rank, outward});
  }
  return out;
}

// What the first group uses, and how many of the groups, which all do the same, use it with it.
std::vector<Use> SharedLinks::uses(const std::vector<Group>& groups, Exchange exchange, double out, double in) {
  std::map<Resource, int> users;
  for (const Group& group : groups)
    for (const Resource& resource : resources_of(group, exchange)) ++users[resource];
  // A resource's name is that of the nodes and ranks that it stands for.
  std::map<std::pair<int, int>, int> kind_of_node;
  for (const int rank : groups.front()) kind_of_node[{plan_.ranks[rank].group, plan_.ranks[rank].node}] = fold_.node_kind[rank];
  std::map<int, double> loads;
  for (const Resource& resource : resources_of(groups.front(), exchange)) {
    const Resource named{resource.kind, 0, kind_of_node.at({resource.group, resource.node}),
                         resource.rank < 0 ? -1 : fold_.program_of[resource.rank], resource.outward};
    const int number = numbers_.try_emplace(named, static_cast<int>(numbers_.size())).first->second;
    loads[number] = std::max(loads[number], users.at(resource) * (resource.outward ? out : in));
  }
  std::vector<Use> uses;
  for (const auto& [number, load] : loads) uses.push_back({number, load});
  return uses;
}

// The groups that do the same as this program's does.
std::vector<SharedLinks::Group> SharedLinks::peers(int program, int group, Op op) const {
  const Program& of = programs_[program];
  const Group& own = of.groups[group].ranks;
  if (!fold_.folded || op == Op::reduce_norm) return {own};
  const plan::Stage& stage = plan_.stages[of.stage];
  // Folded ranks hold all their blocks in one way.
  if (group == of.cuts.front().tensor_group) return tensor_groups(stage);
  if (op != Op::reduce_tied) return data_groups(stage);
  // A tied parameter: this stage and that of the other rank.
  const int other = own[0] == of.rank ? own[1] : own[0];
  for (const plan::Stage& candidate : plan_.stages)
    if (std::ranges::find(candidate.ranks, other) != candidate.ranks.end()) return pairs(stage, candidate);
  return {own};
}

const std::vector<Use>& SharedLinks::of_message(int index, const Instruction& send, bool each) {
  const auto [found, fresh] = of_messages_.try_emplace({index, send.peer, send.op});
  if (!fresh) return found->second;
  const Program& program = programs_[index];
  const plan::Stage& sender = plan_.stages[program.stage];
  const plan::Stage& receiver = plan_.stages[programs_[fold_.program_of[send.peer]].stage];
  const std::vector<Group> one = {{program.rank, send.peer}};
  // Every rank of this stage sends to the rank of the peer's stage with the same indices.
  if (each) return found->second = uses(fold_.folded ? pairs(sender, receiver) : one, Exchange::message);
  const double out = sender.width();
  const double in = receiver.width();
  return found->second = uses(one, Exchange::message_on_ports, std::min(1.0, in / out), std::min(1.0, out / in));
}

const std::vector<Use>& SharedLinks::of_collective(int program, int group, Op op) {
  const auto [found, fresh] = of_collectives_.try_emplace({program, group, op});
  if (fresh) found->second = uses(peers(program, group, op), Exchange::collective);
  return found->second;
}

}  // namespace tessera::sim
