#include "cost/prices.hpp"

#include <algorithm>
#include <set>

namespace tessera::cost {

Prices::Prices(const model::ModelSpec& model, const model::TrainSpec& train, const cluster::ClusterSpec& cluster,
               const profile::Profile& profile)
    : model_(model),
      train_(train),
      cluster_(cluster),
      profile_(profile),
      optimizer_kind_(train.optimizer.kind == model::OptimizerKind::adamw ? "adamw" : "sgd") {
  for (std::size_t r = 0; r < model.repeats.size(); ++r) repeat_of_.insert(repeat_of_.end(), model.repeats[r].count, static_cast<int>(r));
  std::set<std::string> shared;
  for (const auto& block : model.blocks())
    for (const auto& parameter : block.spec->parameters)
      if (!parameter.tied_to.empty()) shared.insert(parameter.tied_to);
  for (const auto& block : model.blocks())
    for (const auto& parameter : block.spec->parameters)
      if (const std::string name = block.parameter_name(parameter); parameter.tied_to.empty() && shared.contains(name))
        owner_[name] = block.index;
}

const BlockPrice& Prices::block(int repeat, const model::BlockShard& shard, const Place& place) {
  const Key key{repeat, shard.micro_batch, shard.tensor_parallel, static_cast<int>(shard.precision), static_cast<int>(shard.recompute),
                place};
  const auto found = blocks_.find(key);
  if (found != blocks_.end()) return found->second;
  const model::BlockSpec& spec = model_.repeats[repeat].block;
  const cluster::Device& device = cluster_.groups[place.group].device;
  model::BlockShard plain = shard;
  plain.recompute = model::Recompute::none;
  const profile::BlockTime time = profile::block_time(profile_, spec, plain, device, place.threads, place.neighbours);
  BlockPrice price;
  price.cost = model::cost_of(spec, shard);
  price.saved_whole = shard.recompute == model::Recompute::none ? price.cost.saved : model::cost_of(spec, plain).saved;
  price.forward = time.forward.value;
  price.recompute = shard.recompute == model::Recompute::full ? time.forward.value : 0;
  price.backward = time.backward.value + price.recompute;
  if (shard.tensor_parallel > 1) {
    price.forward_all_reduces = price.cost.forward_all_reduces;
    price.backward_all_reduces = price.cost.backward_all_reduces + (price.recompute > 0 ? price.forward_all_reduces : 0);
  }
  return blocks_.emplace(key, std::move(price)).first->second;
}

double Prices::optimizer(std::int64_t parameters, const Place& place) const {
  return profile::optimizer_time(profile_, optimizer_kind_, parameters, train_.precision, cluster_.groups[place.group].device,
                                 place.threads, place.neighbours)
      .value;
}

double Prices::collective(const std::string& operation, std::int64_t bytes, int ranks, const cluster::Link& link,
                          profile::Pace pace) const {
  const bool inside = std::any_of(cluster_.groups.begin(), cluster_.groups.end(),
                                  [&](const cluster::ResourceGroup& group) { return &group.inside == &link; });
  return profile::collective_time(profile_, operation, Bytes(bytes), ranks, link, inside ? profile::Medium::bus : profile::Medium::adapter,
                                  pace)
      .value;
}

std::vector<BlockSegment> Prices::segments(int first, int last, model::Recompute recompute) const {
  std::vector<BlockSegment> out;
  for (int b = first; b < last; ++b) {
    const bool inner = b > 0 && b + 1 < block_count();
    const model::Recompute here = inner ? recompute : model::Recompute::none;
    if (!out.empty() && out.back().repeat == repeat_of_[b] && out.back().recompute == here) {
      ++out.back().count;
    } else {
      out.push_back({repeat_of_[b], b, 1, here});
    }
  }
  return out;
}

std::vector<BlockSegment> Prices::segments(const plan::Stage& stage) const {
  std::vector<BlockSegment> out;
  for (const plan::StrategyRun& run : stage.runs)
    for (const BlockSegment& segment : segments(run.first, run.last, run.strategy.recompute)) out.push_back(segment);
  return out;
}

std::int64_t Prices::parameters(int first, int last, int tensor_parallel) const {
  std::int64_t total = 0;
  for (const BlockSegment& segment : segments(first, last, model::Recompute::none)) {
    for (const auto& parameter : model_.repeats[segment.repeat].block.parameters) {
      if (!parameter.tied_to.empty()) {
        const int owner = owner_.at(parameter.tied_to);
        if (owner >= first && owner < last) continue;
      }
      total += segment.count * parameter.shard_count(tensor_parallel);
    }
  }
  return total;
}

std::vector<Place> places_of(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::map<std::pair<int, int>, int> on_node;
  for (const plan::RankPlace& place : plan.ranks) ++on_node[{place.group, place.node}];
  std::vector<Place> out;
  for (const plan::RankPlace& place : plan.ranks) {
    const bool cpu = cluster.groups[place.group].device.is_cpu();
    out.push_back({place.group, cpu ? place.threads : 1, cpu ? on_node[{place.group, place.node}] : 1});
  }
  return out;
}

const cluster::Link& link_among(const plan::Plan& plan, const cluster::ClusterSpec& cluster, const std::vector<int>& ranks) {
  const cluster::Link* slowest = nullptr;
  const plan::RankPlace& first = plan.ranks[ranks.front()];
  for (std::size_t i = 1; i < ranks.size(); ++i) {
    const plan::RankPlace& place = plan.ranks[ranks[i]];
    const cluster::Link& link = cluster::link_between(cluster, first.group, first.node, place.group, place.node);
    if (slowest == nullptr || link.bandwidth < slowest->bandwidth) slowest = &link;
  }
  return slowest == nullptr ? cluster.groups[first.group].inside : *slowest;
}

}  // namespace tessera::cost
