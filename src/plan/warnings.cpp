#include "plan/warnings.hpp"

#include <algorithm>
#include <functional>
#include <set>

#include "plan/stage_places.hpp"

namespace tessera::plan {
namespace {

bool normalizes_by_itself(const model::BlockSpec& block) {
  return !model::exchanges_over_replicas(block) &&
         std::ranges::any_of(block.parameters, [](const model::ParameterSpec& one) { return one.buffer_momentum > 0; });
}

// Empty where there is nothing to say. The buffers of a plug-in's blocks may be other things than statistics of samples.
std::string unequal_norms_of(const Plan& plan, const model::ModelSpec& model) {
  if (!model.plugin.empty()) return {};
  const std::vector<model::BlockInstance> blocks = model.blocks();
  for (const Stage& stage : plan.stages) {
    std::set<std::int64_t, std::greater<>> samples;  // of a replica, which is one rank: batch norm is not cut
    for (const Share& share : stage.shares) samples.insert(share.samples / share.ranks);
    const auto normalizes = [](const model::BlockInstance& block) { return normalizes_by_itself(*block.spec); };
    if (samples.size() < 2 || std::none_of(blocks.begin() + stage.first_block(), blocks.begin() + stage.last_block(), normalizes)) continue;
    std::string numbers;
    for (const std::int64_t each : samples) numbers += (numbers.empty() ? "" : each == *samples.rbegin() ? " and " : ", ") + text(each);
    return text("replicas take ", numbers,
                " samples of a micro-batch, and batch norm takes mean and variance from those of each device: another function is trained "
                "than with equal shares; set model.batch_norm to synchronized to take them from all replicas");
  }
  return {};
}

}  // namespace

std::vector<std::string> warnings_of(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  std::vector<std::string> out;
  for (std::string one : {crowding_of(plan, cluster), unequal_norms_of(plan, model)})
    if (!one.empty()) out.push_back(std::move(one));
  return out;
}

}  // namespace tessera::plan
