#include "cost/lower_bound.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "cost/block_time.hpp"
#include "model/tensor_flow.hpp"
#include "profile/exchange_time.hpp"
#include "program/state_exchanges.hpp"

namespace tessera::cost {
namespace {

using model::Exchange;
using profile::ProcessGroup;

struct RankWork {
  double flops = 0;
  double state = 0;   // bytes of memory
  double inside = 0;  // bytes over the inside link, in one direction
};

// Bytes that enter and leave the devices that an inside link joins.
struct Traffic {
  double in = 0;
  double out = 0;
  double most() const { return std::max(in, out); }
  void both(double bytes) {
    in += bytes;
    out += bytes;
  }
};

struct Domain {
  int group = 0;
  Traffic network;
  Traffic between;
  double inside = 0;  // of all its devices
};

// Bytes of a step that each rank or team exchanges within blocks.
struct BlockBytes {
  double tensor = 0;  // through a ring: all-reduces twice
  double ring = 0;    // sent by a rank around its ring
  double context = 0;
  double experts = 0;
  int copies = 1;  // experts that a token is sent to
};

double product_flops(const std::vector<model::Operator>& operators) {
  double out = 0;
  for (const model::Operator& step : operators)
    if (step.kind != model::Operator::Kind::lookup && step.kind != model::Operator::Kind::elementwise) out += step.flops.value;
  return out;
}

class LeastTimes {
 public:
  LeastTimes(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster)
      : plan_(plan),
        cluster_(cluster),
        blocks_(model.blocks()),
        micro_batches_(static_cast<double>(plan.micro_batches)),
        elements_before_(model::elements_before(model::tensor_flow(model))),
        ranks_(plan.ranks.size()) {
    std::map<std::pair<int, int>, int> numbers;
    for (const plan::RankPlace& place : plan.ranks) {
      const int domain = place.node / cluster.groups[place.group].nodes_per_domain;
      const auto [found, fresh] = numbers.try_emplace({place.group, domain}, static_cast<int>(domains_.size()));
      if (fresh) domains_.push_back({place.group, {}, {}, 0});
      domain_of_.push_back(found->second);
    }
    for (std::size_t s = 0; s < plan.stages.size(); ++s) {
      for (const plan::StrategyRun& run : plan.stages[s].runs) add_run(plan.stages[s], run);
      if (s > 0) add_messages(plan.stages[s - 1], plan.stages[s]);
    }
  }

  std::vector<std::pair<std::string, Seconds>> seconds() const {
    double computing = 0;
    double memory = 0;
    double network = 0;
    double between = 0;
    double inside = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      const cluster::ResourceGroup& group = cluster_.groups[plan_.ranks[rank].group];
      computing = std::max(computing, ranks_[rank].flops / group.device.peak_of(plan_.precision).value);
      memory = std::max(memory, ranks_[rank].state / group.device.memory_bandwidth.value);
      if (ranks_[rank].inside > 0) inside = std::max(inside, ranks_[rank].inside / group.inside.bandwidth.value);
    }
    for (const Domain& domain : domains_) {
      const cluster::ResourceGroup& group = cluster_.groups[domain.group];
      const double nodes = group.nodes_per_domain;
      if (domain.network.most() > 0)
        network = std::max(network, domain.network.most() / (nodes * group.adapters * group.network.bandwidth.value));
      if (domain.between.most() > 0) between = std::max(between, domain.between.most() / (nodes * cluster_.between.bandwidth.value));
      if (group.inside.shared && domain.inside > 0) inside = std::max(inside, domain.inside / (nodes * group.inside.bandwidth.value));
    }
    return {{"computing", Seconds(computing)},
            {"memory", Seconds(memory)},
            {"network", Seconds(network)},
            {"between groups", Seconds(between)},
            {"inside", Seconds(inside)}};
  }

 private:
  // A team's ranks, and how many of them stand on each domain.
  struct Members {
    std::vector<int> ranks;
    std::map<int, int> domains;
    double count() const { return static_cast<double>(ranks.size()); }
    double domain_count() const { return static_cast<double>(domains.size()); }
  };

  // visit(members) for each team of the stage's ranks [first, last), of one group each.
  template <typename Visit>
  void for_teams(const plan::Stage& stage, int first, int last, ProcessGroup team, const Visit& visit) const {
    if (team.ranks < 2) return;
    for (int base = first; base < last; base += team.ranks * team.stride)
      for (int offset = 0; offset < team.stride; ++offset) {
        std::map<int, Members> by_group;
        for (int i = 0; i < team.ranks; ++i) {
          const int rank = stage.ranks[base + offset + i * team.stride];
          Members& members = by_group[plan_.ranks[rank].group];
          members.ranks.push_back(rank);
          ++members.domains[domain_of_[rank]];
        }
        for (const auto& [group, members] : by_group)
          if (members.ranks.size() > 1) visit(members);
      }
  }

  // Bytes over the inside link of each member of a team that stands on one domain.
  void add_inside(const Members& members, double bytes) {
    for (const int rank : members.ranks) ranks_[rank].inside += bytes;
    domains_[members.domains.begin()->first].inside += bytes * members.count();
  }

  // A ring's all-gather or reduce-scatter of a buffer of `bytes`.
  void add_ring(const Members& members, double bytes) {
    if (members.domains.size() == 1) return add_inside(members, bytes * (members.count() - 1) / members.count());
    for (const auto& [number, here] : members.domains)
      domains_[number].network.both(bytes * (members.domain_count() - 1) / members.domain_count());
  }

  void add_run(const plan::Stage& stage, const plan::StrategyRun& run) {
    const plan::Strategy& s = run.strategy;
    std::map<const model::BlockSpec*, int> counts;  // in the order of the model, which owns them one behind the other
    for (int b = run.first; b < run.last; ++b) ++counts[blocks_[b].spec];
    int first = 0;
    for (const plan::Share& share : plan_.shares_of(stage)) {
      const std::int64_t micro_batch = share.samples / std::max(1, share.ranks / (s.cp * s.tp));
      BlockBytes bytes;
      double flops = 0;
      for (const auto& [block, count] : counts) flops += add_block(*block, count * micro_batches_, s, micro_batch, bytes);
      for (int i = first; i < first + share.ranks; ++i) ranks_[stage.ranks[i]].flops += flops;
      add_exchanges(stage, first, first + share.ranks, s, bytes);
      first += share.ranks;
    }
    for (const auto& [block, count] : counts) add_parameters(stage, *block, count, s);
  }

  // FLOPs of a rank, `times` the block's; adds what the block exchanges so often.
  double add_block(model::BlockSpec spec, double times, const plan::Strategy& s, std::int64_t micro_batch, BlockBytes& bytes) const {
    // No software exchanges less than PyTorch frameworks do.
    spec.dims.try_emplace("autograd", 1);
    const model::Precision precision = plan_.precision == model::Precision::f8 ? model::Precision::f8 : model::Precision::bf16;
    const model::BlockCost cost = model::cost_of(spec, shard_of(spec, s, micro_batch, precision));
    for (const auto* exchanges : {&cost.forward_exchanges, &cost.backward_exchanges})
      for (const Exchange& one : *exchanges) {
        const double all = times * static_cast<double>(one.bytes.value);
        if (one.axis == Exchange::Axis::tensor)
          bytes.tensor += (one.operation == "all_reduce" ? 2 : 1) * all;
        else if (one.axis == Exchange::Axis::expert)
          bytes.experts += all;
        else if (one.axis != Exchange::Axis::replica)  // a few numbers of each channel
          (one.operation == "all_to_all" ? bytes.context : bytes.ring) += all;
      }
    if (const auto chosen = spec.dims.find("experts_per_token"); chosen != spec.dims.end()) bytes.copies = static_cast<int>(chosen->second);
    const double again = s.recompute == model::Recompute::full ? product_flops(cost.recomputed_operators) : 0;
    return times * (product_flops(cost.forward_operators) + product_flops(cost.backward_operators) + again);
  }

  void add_exchanges(const plan::Stage& stage, int first, int last, const plan::Strategy& s, const BlockBytes& bytes) {
    if (bytes.tensor > 0) for_teams(stage, first, last, {s.tp, 1}, [&](const Members& members) { add_ring(members, bytes.tensor); });
    if (bytes.context > 0 || bytes.ring > 0)
      for_teams(stage, first, last, {s.cp, s.tp}, [&](const Members& members) {
        const double n = members.count();
        if (members.domains.size() == 1) return add_inside(members, bytes.context * (n - 1) / n + bytes.ring);
        for (const auto& [number, here] : members.domains) {
          domains_[number].network.both(bytes.context * here * (n - here) / n);
          // A domain takes in, once, the keys and values of all other ranks of the ring.
          domains_[number].network.in += bytes.ring * (n - here) / (n - 1);
        }
      });
    if (bytes.experts > 0)
      for_teams(stage, first, last, {s.ep, s.expert_tp()}, [&](const Members& members) {
        const double n = members.count();
        const double k = members.domain_count();
        if (members.domains.size() == 1) return add_inside(members, bytes.experts * (n - 1) / n);
        // The other domains, expected, that want a token: to each of them it goes once.
        const double wanted = (k - 1) * (1 - std::pow(1 - 1 / k, bytes.copies));
        for (const auto& [number, here] : members.domains) domains_[number].network.both(bytes.experts / bytes.copies * here * wanted);
      });
  }

  void add_parameters(const plan::Stage& stage, const model::BlockSpec& block, int count, const plan::Strategy& s) {
    const program::HeldParameters held = program::held_parameters(block, s);
    const double plain = count * held.plain;
    const double experts = count * held.experts;
    const double stepped = plain / s.sharded_over() + experts / s.experts_sharded_over();
    if (!s.offload_optimizer)
      for (const int rank : stage.ranks) ranks_[rank].state += stepped * (kWeight + kState);
    // Reduced once; gathered as often as a rank needs what it does not keep.
    const double ways = 1 + (s.zero == 3 ? micro_batches_ : 1);
    const auto reduce = [&](int ranks, int shards, int stride, double bytes) {
      if (s.zero == 0) shards = ranks;
      for_teams(stage, 0, stage.width(), {shards, stride}, [&](const Members& members) { add_ring(members, ways * bytes); });
      for_teams(stage, 0, stage.width(), {ranks / shards, stride * shards},
                [&](const Members& members) { add_ring(members, 2 * bytes / shards); });
    };
    reduce(s.copies(), s.sharded_over(), s.tp, kWeight * plain);
    if (experts > 0) reduce(s.expert_copies(), s.experts_sharded_over(), s.expert_tp() * s.ep, kWeight * experts);
  }

  // Activations there and gradients back: what a domain's devices have of them beyond what stays there.
  void add_messages(const plan::Stage& from, const plan::Stage& to) {
    if (from.ranks == to.ranks) return;
    const auto elements = static_cast<double>(elements_before_[to.first_block()]);
    const double bytes = kWeight * elements * static_cast<double>(plan_.samples()) * micro_batches_;
    std::map<int, double> held;  // by domain: share before less share behind
    std::map<int, int> groups;   // 1: senders stand there, 2: receivers, 3: both
    const auto add = [&](const plan::Stage& stage, double sign, int side) {
      std::size_t next = 0;
      for (const plan::Share& share : plan_.shares_of(stage))
        for (int i = 0; i < share.ranks; ++i, ++next) {
          const int rank = stage.ranks[next];
          held[domain_of_[rank]] += sign * static_cast<double>(share.samples) / static_cast<double>(plan_.samples()) / share.ranks;
          groups[plan_.ranks[rank].group] |= side;
        }
    };
    add(from, 1, 1);
    add(to, -1, 2);
    const bool apart = std::none_of(groups.begin(), groups.end(), [](const auto& group) { return group.second == 3; });
    if (groups.size() > 1 && !apart) return;
    for (const auto& [number, share] : held) (apart ? domains_[number].between : domains_[number].network).both(std::abs(share) * bytes);
  }

  const plan::Plan& plan_;
  const cluster::ClusterSpec& cluster_;
  const std::vector<model::BlockInstance> blocks_;
  const double micro_batches_;
  const std::vector<std::int64_t> elements_before_;  // by block
  std::vector<int> domain_of_;                       // by rank
  std::vector<RankWork> ranks_;
  std::vector<Domain> domains_;
};

}  // namespace

std::vector<std::pair<std::string, Seconds>> least_times(const plan::Plan& plan, const model::ModelSpec& model,
                                                         const cluster::ClusterSpec& cluster) {
  return LeastTimes(plan, model, cluster).seconds();
}

}  // namespace tessera::cost
