#include "sim/priced.hpp"

#include <algorithm>

namespace tessera::sim {

using program::Instruction;
using program::Op;
using program::Program;

PricedCosts::PricedCosts(const std::vector<Program>& programs, const Fold& fold, const plan::Plan& plan, cost::Prices& prices)
    : programs_(programs), fold_(fold), plan_(plan), prices_(prices), places_(cost::places_of(plan, prices.cluster())) {}

int PricedCosts::number_of(const Resource& resource) {
  return numbers_.try_emplace(resource, static_cast<int>(numbers_.size())).first->second;
}

std::vector<PricedCosts::Physical> PricedCosts::of_collective(const Group& ranks) const {
  const plan::RankPlace& first = plan_.ranks[ranks.front()];
  const bool one_node = std::all_of(
      ranks.begin(), ranks.end(), [&](int rank) { return plan_.ranks[rank].group == first.group && plan_.ranks[rank].node == first.node; });
  std::vector<Physical> out;
  for (const int rank : ranks) {
    const plan::RankPlace& place = plan_.ranks[rank];
    const cluster::ResourceGroup& group = prices_.cluster().groups[place.group];
    const bool shared = one_node ? group.inside.shared : group.network.shared;
    if (one_node && shared) {
      out.push_back({Resource::Kind::bus, place.group, place.node, -1, true});
      continue;
    }
    for (const bool outward : {true, false})
      out.push_back({shared ? Resource::Kind::adapter : Resource::Kind::port, place.group, place.node, shared ? -1 : rank, outward});
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::vector<PricedCosts::Physical> PricedCosts::of_message(const Group& pair) const {
  const plan::RankPlace& from = plan_.ranks[pair[0]];
  const plan::RankPlace& to = plan_.ranks[pair[1]];
  const bool one_node = from.group == to.group && from.node == to.node;
  if (one_node && prices_.cluster().groups[from.group].inside.shared) return {{Resource::Kind::bus, from.group, from.node, -1, true}};
  std::vector<Physical> out;
  for (const bool outward : {true, false}) {
    const int rank = pair[outward ? 0 : 1];
    const plan::RankPlace& place = plan_.ranks[rank];
    const bool shared = !one_node && prices_.cluster().groups[place.group].network.shared;
    out.push_back({shared ? Resource::Kind::adapter : Resource::Kind::port, place.group, place.node, shared ? -1 : rank, outward});
  }
  return out;
}

// What the first group uses, and how many of the groups, which all do the same, use it with it.
template <typename PhysicalOf>
std::vector<Use> PricedCosts::uses(const std::vector<Group>& groups, const PhysicalOf& physical_of) {
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
std::vector<PricedCosts::Group> PricedCosts::peers(int program, int group, Op op) const {
  const Program& of = programs_[program];
  const Group& own = of.groups[group].ranks;
  if (!fold_.folded || op == Op::reduce_norm) return {own};
  const plan::Stage& stage = plan_.stages[of.stage];
  if (group == of.tensor_group) return tensor_groups(stage);
  if (op != Op::reduce_tied) return data_groups(stage);
  // A tied parameter: this stage and that of the other rank.
  const int other = own[0] == of.rank ? own[1] : own[0];
  for (const plan::Stage& candidate : plan_.stages) {
    if (std::find(candidate.ranks.begin(), candidate.ranks.end(), other) == candidate.ranks.end()) continue;
    std::vector<Group> out;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) out.push_back({stage.ranks[i], candidate.ranks[i]});
    return out;
  }
  return {own};
}

Compute PricedCosts::compute(int program, const Instruction& instruction) {
  const auto [found, fresh] =
      computed_.try_emplace({program, instruction.op, instruction.first_block, instruction.last_block, instruction.bucket});
  if (fresh) found->second = price(program, instruction);
  return found->second;
}

Compute PricedCosts::price(int index, const Instruction& instruction) {
  const Program& program = programs_[index];
  const cost::Place& place = places_[program.rank];
  Compute out;
  if (instruction.op == Op::optimizer_step) {
    const program::Bucket& bucket = program.buckets[instruction.bucket];
    out.seconds = prices_.optimizer(bucket.sharded ? bucket.count / program.dp_size : bucket.count, place);
    return out;
  }
  const program::Chunk& chunk = program.chunks[program.chunk_of(instruction.first_block)];
  const bool forward = instruction.op == Op::forward;
  // A backward pass in two instructions: each about half of it, recomputation with the first.
  const double share = instruction.op == Op::backward || forward ? 1.0 : 0.5;
  for (int b = instruction.first_block; b < instruction.last_block; ++b) {
    const model::Recompute recompute = chunk.recompute[b - chunk.first_block] ? model::Recompute::full : model::Recompute::none;
    const int repeat = prices_.segments(b, b + 1, model::Recompute::none).front().repeat;
    const cost::BlockPrice& price = prices_.block(repeat, {program.micro_batch, program.tp_size, plan_.precision, recompute}, place);
    out.seconds += forward ? price.forward
                           : share * (price.backward - price.recompute) + (instruction.op == Op::backward_weight ? 0 : price.recompute);
    if (!forward && instruction.op != Op::backward_weight) out.recompute += price.recompute;
    const int reductions = instruction.op == Op::backward_weight ? 0 : forward ? price.forward_all_reduces : price.backward_all_reduces;
    if (program.tensor_group < 0 || reductions == 0) continue;
    const auto& members = program.groups[program.tensor_group].ranks;
    out.exchange.seconds += reductions * prices_.collective("all_reduce", price.cost.all_reduce_size.value, program.tp_size,
                                                            cost::link_among(plan_, prices_.cluster(), members), profile::Pace::in_turn);
  }
  if (out.exchange.seconds > 0) {
    out.exchange.uses = uses(peers(index, program.tensor_group, instruction.op), [&](const Group& group) { return of_collective(group); });
    if (!fold_.folded) out.together = program.groups[program.tensor_group].ranks.front();
  }
  return out;
}

Transfer PricedCosts::message(int index, const Instruction& send) {
  const Program& program = programs_[index];
  Transfer out;
  out.seconds = prices_.collective("send", send.bytes.value, 2, cost::link_among(plan_, prices_.cluster(), {program.rank, send.peer}),
                                   profile::Pace::in_turn);
  const auto [found, fresh] = message_uses_.try_emplace({index, send.peer, send.op});
  if (fresh) {
    std::vector<Group> groups = {{program.rank, send.peer}};
    if (fold_.folded) {
      // Every rank of this place sends to the rank of the peer's place with the same indices.
      const plan::Stage& from = plan_.stages[program.stage];
      const int peer_stage = programs_[fold_.program_of[send.peer]].stage;
      groups.clear();
      for (std::size_t i = 0; i < from.ranks.size(); ++i) groups.push_back({from.ranks[i], plan_.stages[peer_stage].ranks[i]});
    }
    found->second = uses(groups, [&](const Group& pair) { return of_message(pair); });
  }
  out.uses = found->second;
  return out;
}

Transfer PricedCosts::collective(int index, const Instruction& instruction) {
  const Program& program = programs_[index];
  const std::vector<int>& members = program.groups[instruction.group].ranks;
  Transfer out;
  if (members.size() < 2) return out;
  const auto [found, fresh] = collective_uses_.try_emplace({index, instruction.group, instruction.op});
  if (fresh)
    found->second = uses(peers(index, instruction.group, instruction.op), [&](const Group& group) { return of_collective(group); });
  out.uses = found->second;
  const bool sharded = instruction.bucket >= 0 && program.buckets[instruction.bucket].sharded;
  const char* operation = instruction.op == Op::gather_parameters             ? "all_gather"
                          : instruction.op == Op::reduce_gradients && sharded ? "reduce_scatter"
                                                                              : "all_reduce";
  const cluster::Link& link = cost::link_among(plan_, prices_.cluster(), members);
  const int ranks = static_cast<int>(members.size());
  const profile::Overlap overlap = prices_.overlap(operation, ranks, link);
  out.seconds = prices_.collective(operation, instruction.bytes.value, ranks, link);
  out.slows = overlap.slows;
  out.slowed = overlap.slowed;
  return out;
}

program::MemoryBudget PricedCosts::memory(int index) {
  const Program& program = programs_[index];
  const cost::Place& place = places_[program.rank];
  program::MemoryBudget out;
  for (std::size_t c = 0; c < program.chunks.size(); ++c) {
    const int stage = program.chunks[c].stage;
    cost::StageShape shape = cost::shape_of(plan_, stage, place, program.micro_batch);
    const cost::StageBytes bytes = cost::stage_bytes(shape, prices_.segments(plan_.stages[stage]), prices_);
    out.fixed += Bytes(bytes.fixed);
    out.workspace = std::max(out.workspace, Bytes(bytes.workspace));
    // Blocks keep all that they saved until the weight half has run.
    out.chunks.push_back({Bytes(bytes.saved), Bytes(bytes.saved)});
    if (c == 0) continue;
    // The process itself counts once: take away what a stage without blocks would hold.
    shape.last = shape.first;
    out.fixed -= Bytes(cost::stage_bytes(shape, {}, prices_).fixed);
  }
  return out;
}

}  // namespace tessera::sim
