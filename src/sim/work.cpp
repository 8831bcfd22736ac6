#include "sim/work.hpp"

#include <algorithm>

namespace tessera::sim {

using program::Instruction;
using program::Op;
using program::Program;

Work::Work(const std::vector<Program>& programs, const plan::Plan& plan, plan::Prices& prices)
    : programs_(programs), plan_(plan), prices_(prices), places_(plan::places_of(plan, prices.cluster())) {}

void Work::add_resources(const std::vector<int>& ranks, bool outward, bool inward, std::vector<Resource>& out) const {
  const plan::RankPlace& first = plan_.ranks[ranks.front()];
  const bool one_node = std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
    return plan_.ranks[rank].group == first.group && plan_.ranks[rank].node == first.node;
  });
  for (int rank : ranks) {
    const plan::RankPlace& place = plan_.ranks[rank];
    const cluster::ResourceGroup& group = prices_.cluster().groups[place.group];
    const bool shared = one_node ? group.inside.shared : group.network.shared;
    if (one_node && shared) {
      out.push_back({Resource::Kind::bus, place.group, place.node, -1, true});
      continue;
    }
    const auto kind = shared ? Resource::Kind::adapter : Resource::Kind::port;
    for (const bool direction : {true, false})
      if (direction ? outward : inward) out.push_back({kind, place.group, place.node, shared ? -1 : rank, direction});
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
}

Compute Work::compute(int rank, const Instruction& instruction) {
  const Program& program = programs_[rank];
  Compute out;
  if (instruction.op == Op::optimizer_step) {
    const program::Bucket& bucket = program.buckets[instruction.bucket];
    out.seconds = prices_.optimizer(bucket.sharded ? bucket.count / program.dp_size : bucket.count, places_[rank]);
    return out;
  }
  double exchange = 0;
  for (int b = instruction.first_block; b < instruction.last_block; ++b) {
    const model::Recompute recompute = program.recompute[b - program.first_block] ? model::Recompute::full : model::Recompute::none;
    const int repeat = prices_.segments(b, b + 1, model::Recompute::none).front().repeat;
    const plan::BlockPrice& price = prices_.block(repeat, {program.micro_batch, program.tp_size, plan_.precision, recompute}, places_[rank]);
    const bool forward = instruction.op == Op::forward;
    // A backward pass in two instructions: each about half.
    const double share = instruction.op == Op::backward || forward ? 1.0 : 0.5;
    out.seconds += share * (forward ? price.forward : price.backward);
    const int reductions = instruction.op == Op::backward_weight ? 0 : forward ? price.forward_all_reduces : price.backward_all_reduces;
    if (program.tensor_group >= 0 && reductions > 0) {
      const auto& members = program.groups[program.tensor_group].ranks;
      exchange += reductions * prices_.collective("all_reduce", price.cost.all_reduce_size.value, program.tp_size,
                                                  plan::link_among(plan_, prices_.cluster(), members));
    }
  }
  if (exchange > 0) {
    out.exchange.seconds = exchange;
    add_resources(program.groups[program.tensor_group].ranks, true, true, out.exchange.resources);
  }
  return out;
}

Transfer Work::message(int from, int to, std::int64_t bytes) const {
  Transfer out;
  out.seconds = prices_.collective("send", bytes, 2, plan::link_among(plan_, prices_.cluster(), {from, to}));
  const plan::RankPlace& a = plan_.ranks[from];
  const plan::RankPlace& b = plan_.ranks[to];
  if (a.group == b.group && a.node == b.node) {
    const cluster::Link& inside = prices_.cluster().groups[a.group].inside;
    if (inside.shared) {
      out.resources = {{Resource::Kind::bus, a.group, a.node, -1, true}};
    } else {
      out.resources = {{Resource::Kind::port, a.group, a.node, from, true}, {Resource::Kind::port, b.group, b.node, to, false}};
    }
    return out;
  }
  for (const auto& [place, rank, outward] : {std::tuple(a, from, true), std::tuple(b, to, false)}) {
    const bool shared = prices_.cluster().groups[place.group].network.shared;
    out.resources.push_back({shared ? Resource::Kind::adapter : Resource::Kind::port, place.group, place.node, shared ? -1 : rank, outward});
  }
  return out;
}

Transfer Work::collective(const Instruction& instruction, const std::vector<int>& members) const {
  const Program& program = programs_[members.front()];
  Transfer out;
  if (members.size() < 2) return out;
  const cluster::Link& link = plan::link_among(plan_, prices_.cluster(), members);
  const bool sharded = instruction.bucket >= 0 && program.buckets[instruction.bucket].sharded;
  const char* operation = instruction.op == Op::gather_parameters                 ? "all_gather"
                          : instruction.op == Op::reduce_gradients && sharded ? "reduce_scatter"
                                                                              : "all_reduce";
  out.seconds = prices_.collective(operation, instruction.bytes.value, static_cast<int>(members.size()), link);
  add_resources(members, true, true, out.resources);
  return out;
}

plan::StageBytes Work::memory(int rank) {
  const int stage = programs_[rank].stage;
  return plan::stage_bytes(plan::shape_of(plan_, stage, places_[rank]), prices_.segments(plan_.stages[stage]), prices_);
}

}  // namespace tessera::sim
