#include "sim/shared_links.hpp"

#include <algorithm>

namespace tessera::sim {

using program::Instruction;
using program::Op;
using program::Program;

int SharedLinks::number_of(const Resource& resource) {
  return numbers_.try_emplace(resource, static_cast<int>(numbers_.size())).first->second;
}

std::vector<SharedLinks::Physical> SharedLinks::physical_of_collective(const Group& ranks) const {
  const plan::RankPlace& first = plan_.ranks[ranks.front()];
  const bool one_node = std::all_of(
      ranks.begin(), ranks.end(), [&](int rank) { return plan_.ranks[rank].group == first.group && plan_.ranks[rank].node == first.node; });
  std::vector<Physical> out;
  for (const int rank : ranks) {
    const plan::RankPlace& place = plan_.ranks[rank];
    const cluster::ResourceGroup& group = cluster_.groups[place.group];
    const bool shared = one_node ? group.inside.shared : group.network.shared;
    if (one_node && shared) {
      out.push_back({Resource::Kind::bus, place.group, place.node, -1, true});
      continue;
    }
    for (const bool outward : {true, false}) out.push_back(end_of(rank, outward, shared));
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

SharedLinks::Physical SharedLinks::end_of(int rank, bool outward, bool shared) const {
  const plan::RankPlace& place = plan_.ranks[rank];
  return {shared ? Resource::Kind::adapter : Resource::Kind::port, place.group, place.node, shared ? -1 : rank, outward};
}

// Not `each`: ports alone.
std::vector<SharedLinks::Physical> SharedLinks::physical_of_message(const Group& pair, bool each) const {
  const plan::RankPlace& from = plan_.ranks[pair[0]];
  const plan::RankPlace& to = plan_.ranks[pair[1]];
  const bool one_node = from.group == to.group && from.node == to.node;
  if (each && one_node && cluster_.groups[from.group].inside.shared) return {{Resource::Kind::bus, from.group, from.node, -1, true}};
  std::vector<Physical> out;
  for (const bool outward : {true, false}) {
    const int rank = pair[outward ? 0 : 1];
    out.push_back(end_of(rank, outward, each && !one_node && cluster_.groups[plan_.ranks[rank].group].network.shared));
  }
  return out;
}

// What the first group uses, and how many of the groups, which all do the same, use it with it.
template <typename PhysicalOf>
std::vector<Use> SharedLinks::uses(const std::vector<Group>& groups, const PhysicalOf& physical_of) {
  const std::vector<Physical> own = physical_of(groups.front());
  std::map<Physical, int> users;
  for (const Group& group : groups)
    for (const Physical& resource : physical_of(group)) ++users[resource];
  // A resource's name is that of the nodes and ranks that it stands for.
  std::map<std::pair<int, int>, int> kind_of_node;
  for (const int rank : groups.front()) kind_of_node[{plan_.ranks[rank].group, plan_.ranks[rank].node}] = fold_.node_kind[rank];
  std::map<int, int> loads;
  for (const Physical& resource : own) {
    const int number = number_of({resource.kind, kind_of_node.at({resource.group, resource.node}),
                                  resource.rank < 0 ? -1 : fold_.program_of[resource.rank], resource.outward});
    loads[number] = std::max(loads[number], users.at(resource));
  }
  std::vector<Use> out;
  for (const auto& [number, load] : loads) out.push_back({number, load});
  return out;
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
    if (std::find(candidate.ranks.begin(), candidate.ranks.end(), other) != candidate.ranks.end()) return pairs(stage, candidate);
  return {own};
}

const std::vector<Use>& SharedLinks::of_message(int index, const Instruction& send, bool each) {
  const auto [found, fresh] = of_messages_.try_emplace({index, send.peer, send.op});
  if (!fresh) return found->second;
  const Program& program = programs_[index];
  std::vector<Group> groups = {{program.rank, send.peer}};
  // Every rank of this stage sends to the rank of the peer's stage with the same indices.
  if (fold_.folded && each) groups = pairs(plan_.stages[program.stage], plan_.stages[programs_[fold_.program_of[send.peer]].stage]);
  return found->second = uses(groups, [&](const Group& pair) { return physical_of_message(pair, each); });
}

const std::vector<Use>& SharedLinks::of_collective(int program, int group, Op op) {
  const auto [found, fresh] = of_collectives_.try_emplace({program, group, op});
  if (!fresh) return found->second;
  return found->second = uses(peers(program, group, op), [&](const Group& ranks) { return physical_of_collective(ranks); });
}

}  // namespace tessera::sim
