#include "sim/model_costs.hpp"

#include <algorithm>

#include "model/forms.hpp"

namespace tessera::sim {

using program::Instruction;
using program::Op;
using program::Program;

namespace {

// Those that exchange in a pass: how many, and their index into Program::groups.
std::pair<int, int> peers_of(model::Exchange::Axis axis, const program::Cut& cut) {
  switch (axis) {
    case model::Exchange::Axis::context: return {cut.context_size, cut.context_group};
    case model::Exchange::Axis::expert: return {cut.expert_size, cut.expert_group};
    case model::Exchange::Axis::replica: return {cut.dp_size, cut.replica_group};
    default: return {cut.tp_size, cut.tensor_group};
  }
}

}  // namespace

ModelCosts::ModelCosts(const std::vector<Program>& programs, const Fold& fold, const plan::Plan& plan, cost::CostModel& cost_model)
    : programs_(programs),
      fold_(fold),
      plan_(plan),
      cost_model_(cost_model),
      priced_(plan, cost_model),
      links_(programs, fold, plan, cost_model.cluster()),
      beside_servers_(programs.size(), 0) {
  if (!model::reads_clicks(cost_model.model())) return;
  const int block = model::tables_block(cost_model.model());
  const model::BlockSpec& tables = *cost_model.model().blocks()[block].spec;
  lookups_ = static_cast<double>(plan.global_batch * model::lookups_of_sample(tables));
  row_bytes_ = program::bytes_of_row(tables.dim("dim")).value;
}

Compute ModelCosts::compute(int index, const Instruction& instruction) {
  const auto [found, fresh] =
      computed_.try_emplace({index, instruction.op, instruction.first_block, instruction.last_block, instruction.bucket});
  if (fresh) {
    found->second = alone(index, instruction);
    const double slows = beside_servers(index);
    found->second.seconds *= slows;
    found->second.recompute *= slows;
  }
  return found->second;
}

Compute ModelCosts::alone(int index, const Instruction& instruction) {
  return instruction.op != Op::optimizer_step ? pass(index, instruction) : step(programs_[index], instruction.bucket);
}

// What servers of its host work in a step is spread evenly over what the rank computes in it.
double ModelCosts::beside_servers(int index) {
  double& out = beside_servers_[index];
  if (out > 0) return out;
  out = 1;
  const profile::RowsSample *const pull = cost_model_.rows("pull"), *const push = cost_model_.rows("push");
  const Program& program = programs_[index];
  const int here = server_threads(program.rank);
  if (here == 0 || pull == nullptr || push == nullptr) return out;
  double computing = 0;
  for (const Instruction& instruction : program.instructions)
    if (program::is_compute(instruction.op)) computing += alone(index, instruction).seconds;
  const cluster::Device& device = group_of(program.rank).device;
  if (computing <= 0 || !device.shares_host()) return out;
  const double served = lookups_ * (pull->server.median + push->server.median) * here / server_threads() / speed_of(program.rank);
  return out = 1 + served / std::max(1, device.cores) / computing;
}

Compute ModelCosts::pass(int index, const Instruction& instruction) {
  const Program& program = programs_[index];
  const bool forward = instruction.op == Op::forward;
  const bool input = instruction.op == Op::backward || instruction.op == Op::backward_input;
  const bool weight = instruction.op == Op::backward || instruction.op == Op::backward_weight;
  const bool played = plays(program.stage);
  const int part = part_of(program);
  int group = -1;  // of the pass's exchanges: where blocks are cut in several ways, the largest
  Compute out;
  const auto link_of = [&](int of) -> const cluster::Link& {
    const std::vector<int>& ranks = program.groups[of].ranks;
    if (group < 0 || ranks.size() > program.groups[group].ranks.size()) group = of;
    return link_among(ranks);
  };
  for (int b = instruction.first_block; b < instruction.last_block; ++b) {
    const cost::BlockLoad& load = priced_.load(program.stage, b, part);
    if (forward) out.seconds += std::max(0.0, load.forward - load.forward_exchange);
    if (input) out.seconds += std::max(0.0, load.backward_input - load.backward_exchange);
    if (input) out.recompute += std::max(0.0, load.again - load.again_exchange);
    if (weight) out.seconds += load.backward_weight;
    if (!forward && !input) continue;
    if (!played) {
      out.exposed.seconds += forward ? load.forward_exchange : load.backward_exchange;
    } else {
      const program::Cut& cut = program.cut_of(b);
      for (const model::Exchange& each : forward ? load.forward_played : load.backward_played) {
        const auto [ranks, peers] = peers_of(each.axis, cut);
        out.exposed.seconds += cost_model_.exchange(each, ranks, link_of(peers), profile::Pace::in_turn);
      }
    }
    if (b == 0 || program.chunk_of(b - 1) < 0) continue;
    if (!played) {
      out.exposed.seconds += priced_.reshard(program.stage, b);
    } else {
      const auto exchange = [&](const char* operation, double bytes, int peers) {
        out.exposed.seconds +=
            cost_model_.exchange(operation, static_cast<std::int64_t>(bytes), static_cast<int>(program.groups[peers].ranks.size()),
                                 link_of(peers), profile::Pace::in_turn);
      };
      const bool cut_rows = program.strategy_of(forward ? b - 1 : b).sequence_parallel;
      const int block = forward ? b : b - 1;  // whose cut the tensors get
      const program::Cut& target = program.cut_of(block);
      const bool cuts_rows = program.strategy_of(block).sequence_parallel;
      const bool alike = program.cut_of(b - 1).same_layout(program.cut_of(b));
      const double held = cost_model_.input_bytes(priced_.repeat(b), target.micro_batch_size) / target.context_size;
      if (const int anew = program.cut_of(b).anew_group; !alike && anew >= 0) exchange("all_to_all", held / target.tp_size, anew);
      if ((!alike || cut_rows != cuts_rows) && target.tp_size > 1 && !cuts_rows) exchange("all_gather", held, target.tensor_group);
    }
  }
  if (forward && instruction.first_block == program.chunks[program.chunk_of(instruction.first_block)].first_block)
    out.seconds += cost_model_.micro_batch_host(priced_.devices(program.stage));
  if (played && out.exposed.seconds > 0) {
    out.exposed.uses = links_.of_collective(index, group, instruction.op);
    if (!fold_.folded) out.exposed.id = program.groups[group].ranks.front();
  }
  return out;
}

Compute ModelCosts::step(const Program& program, int bucket) const {
  // A block whose parameters stand in several buckets is stepped with the first of them, and what a step costs once likewise.
  const auto first_with = [&](int block) {
    const auto holds = [&](const program::Bucket& candidate) {
      return std::ranges::find(candidate.entries, block, &program::BucketEntry::block) != candidate.entries.end();
    };
    return static_cast<int>(std::ranges::find_if(program.buckets, holds) - program.buckets.begin());
  };
  Compute out;
  if (plays(program.stage)) {
    out.seconds = cost_model_.optimizer(priced_.devices(program.stage), part_of(program), program.buckets[bucket].shard_count());
    return out;
  }
  if (bucket == 0) out.seconds = cost_model_.step_host(priced_.devices(program.stage));
  int last = -1;
  for (const program::BucketEntry& entry : program.buckets[bucket].entries) {
    if (entry.block == last || first_with(entry.block) != bucket) continue;
    last = entry.block;
    const cost::BlockLoad& load = priced_.load(program.stage, last);
    out.seconds += load.optimizer;
    out.exposed.seconds += load.exchange;
    // The model's first block owns what others share.
    if (program.chunk_of(0) < 0) out.exposed.seconds += load.tied_exchange;
  }
  return out;
}

Transfer ModelCosts::message(int index, const Instruction& send) {
  const Program& program = programs_[index];
  const bool activation = send.op == Op::send_activation;
  const int from = program.chunks[program.chunk_of(activation ? send.first_block - 1 : send.first_block)].stage;
  const int to = activation ? from + 1 : from - 1;
  const bool played = plays(from) || plays(to);
  const auto [found, fresh] = messages_.try_emplace({index, send.op, send.first_block, send.peer});
  if (fresh)
    found->second =
        played ? cost_model_.exchange("send", send.bytes.value, 2, link_among({program.rank, send.peer}), profile::Pace::in_turn)
               : cost_model_.message(cost_model_.input_bytes(priced_.repeat(send.first_block), plan_.samples()), priced_.devices(from),
                                     plan_.stages[from].width(), priced_.devices(to), plan_.stages[to].width());
  Transfer out{.seconds = found->second, .uses = links_.of_message(index, send, played)};
  if (played) return out;
  // The time is that of all that the two stages pass on of a micro-batch.
  out.id = plan_.world_size() + (send.micro_batch * static_cast<int>(plan_.stages.size()) + from) * 2 + activation;
  return out;
}

Transfer ModelCosts::collective(int index, const Instruction& instruction) {
  const Program& program = programs_[index];
  const std::vector<int>& members = program.groups[instruction.group].ranks;
  if (!plays(program.stage) || members.size() < 2) return {};
  const bool sharded = instruction.bucket >= 0 && program.buckets[instruction.bucket].sharded();
  const bool gathers = instruction.op == Op::gather_parameters || program::is_gather_of_inputs(instruction.op);
  const char* operation = gathers ? "all_gather" : instruction.op == Op::reduce_gradients && sharded ? "reduce_scatter" : "all_reduce";
  const cluster::Link& link = link_among(members);
  const int ranks = static_cast<int>(members.size());
  const profile::Overlap overlap = cost_model_.overlap(operation, ranks, link);
  return {cost_model_.exchange(operation, instruction.bytes.value, ranks, link), overlap.slows, overlap.slowed,
          links_.of_collective(index, instruction.group, instruction.op)};
}

Transfer ModelCosts::rows(int index, const Instruction& instruction) {
  const profile::RowsSample* const each = cost_model_.rows(instruction.op == Op::pull_rows ? "pull" : "push");
  if (each == nullptr) return {};
  const double own = static_cast<double>(instruction.bytes.value) / static_cast<double>(row_bytes_);
  const int rank = programs_[index].rank;
  const int threads = server_threads();
  // Ranks that read tables do so together: each server has its part of all that they ask for.
  double latency = 0, wire = 0, served = 0;
  for (const plan::Server& server : plan_.servers) {
    const double share = static_cast<double>(server.threads) / threads;
    served = std::max(served, lookups_ / threads * each->server.median / speed_of(server.rank));
    if (server.rank == rank) continue;
    const cluster::Link& link = link_among({rank, server.rank});
    latency = std::max(latency, 2 * link.latency.value);
    wire = std::max(wire, std::max(own, lookups_ * share) * each->bytes / link.bandwidth.value);
  }
  const double client = own * each->client.median / speed_of(rank);
  Transfer out;
  out.seconds = latency + std::max({client, wire, served});
  // The rank's thread that asks takes turns with those that compute, where these have all cores.
  const plan::RankPlace& place = plan_.ranks[rank];
  int busy = 1;
  for (const plan::RankPlace& other : plan_.ranks)
    if (on_one_host(other, place)) busy += other.threads;
  if (busy > group_of(rank).device.cores && out.seconds > 0) out.slows = out.slowed = 1 + client / out.seconds / std::max(1, place.threads);
  return out;
}

int ModelCosts::server_threads(std::optional<int> rank) const {
  int out = 0;
  for (const plan::Server& server : plan_.servers)
    if (!rank || on_one_host(plan_.ranks[server.rank], plan_.ranks[*rank])) out += server.threads;
  return out;
}

program::MemoryBudget ModelCosts::memory(int index) {
  const Program& program = programs_[index];
  const cost::RankBytes bytes = priced_.bytes(program.stage, part_of(program));
  return {bytes.fixed(), bytes.workspace, bytes.activations};
}

}  // namespace tessera::sim
