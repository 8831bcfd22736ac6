#include "train/table_spec.hpp"

#include <limits>

#include "data/clicks/keys.hpp"
#include "model/forms.hpp"

namespace tessera::train {
namespace {

ps::Admission admission_of(const model::AdmissionSpec& admission) {
  ps::Admission out{.after = admission.after, .probability = {}};
  if (admission.probability) out.probability = static_cast<float>(*admission.probability);
  return out;
}
ps::Eviction eviction_of(const model::EvictionSpec& eviction) {
  ps::Eviction out{.unseen = eviction.unseen, .below = {}};
  if (eviction.below) out.below = static_cast<float>(*eviction.below);
  return out;
}

std::vector<ps::GrowthStep> growth_of(const std::vector<model::GrowthStepSpec>& growth) {
  std::vector<ps::GrowthStep> out;
  for (const model::GrowthStepSpec& step : growth) out.push_back({.seen = static_cast<float>(step.seen), .dimension = step.dimension});
  return out;
}

ps::Lifecycle lifecycle_of(const model::LifecycleSpec& lifecycle) {
  ps::Lifecycle out;
  out.decay = static_cast<float>(lifecycle.decay);
  out.click_weight = static_cast<float>(lifecycle.click_weight);
  out.unclicked_weight = static_cast<float>(lifecycle.unclicked_weight);
  out.admission = admission_of(lifecycle.admission);
  out.waiting_keys = static_cast<std::uint64_t>(lifecycle.waiting_keys);
  out.forget_after = lifecycle.forget_after;
  out.eviction = eviction_of(lifecycle.eviction);
  out.growth = growth_of(lifecycle.growth);
  out.slot_bits = std::numeric_limits<ps::Key>::digits - data::kIdBits;
  for (const model::TableLifecycleSpec& some : lifecycle.tables)
    for (const int table : some.tables) {
      ps::SlotLifecycle& slot = out.slots.emplace_back();
      slot.slot = static_cast<std::uint32_t>(table);
      slot.learning_rate_scale = static_cast<float>(some.lr_scale);
      if (some.admission) slot.admission = admission_of(*some.admission);
      if (some.eviction) slot.eviction = eviction_of(*some.eviction);
      slot.growth = growth_of(some.growth);
    }
  return out;
}

}  // namespace

ps::TableSpec table_of(const model::JobSpec& job) {
  const model::ParameterServerSpec& servers = job.parameter_servers;
  const model::TableOptimizerSpec& optimizer = servers.optimizer;
  const auto real = [](double value) { return static_cast<float>(value); };
  ps::TableSpec table;
  table.name = job.name;
  table.dimension = static_cast<int>(job.model.blocks().at(static_cast<std::size_t>(model::tables_block(job.model))).spec->dim("dim"));
  const auto type_of = [](const std::string& name) {
    return name == "fp32" ? ps::RowType::fp32 : name == "bf16" ? ps::RowType::bf16 : ps::RowType::int8;
  };
  table.type = type_of(servers.rows);
  table.wire = type_of(servers.wire);
  table.optimizer.rule = optimizer.kind == "adagrad" ? ps::Rule::adagrad
                         : optimizer.kind == "adam"  ? ps::Rule::adam
                         : optimizer.kind == "sgd"   ? ps::Rule::sgd
                                                     : ps::Rule::ftrl;
  table.optimizer.row_moment = optimizer.row_moment;
  table.optimizer.learning_rate = real(optimizer.lr);
  table.optimizer.epsilon = real(optimizer.epsilon);
  table.optimizer.initial_moment = real(optimizer.initial_moment);
  table.optimizer.beta1 = real(optimizer.beta1);
  table.optimizer.beta2 = real(optimizer.beta2);
  table.optimizer.l1 = real(optimizer.l1);
  table.optimizer.l2 = real(optimizer.l2);
  table.optimizer.beta = real(optimizer.beta);
  if (optimizer.clip_norm) table.optimizer.clip_norm = real(*optimizer.clip_norm);
  table.initializer.kind = servers.initializer == "uniform"  ? ps::InitialValues::uniform
                           : servers.initializer == "normal" ? ps::InitialValues::normal
                                                             : ps::InitialValues::zero;
  table.initializer.scale = real(servers.initial_scale);
  table.initializer.seed = job.train.seed;
  table.consistency = servers.consistency == "synchronous" ? ps::Consistency::synchronous : ps::Consistency::asynchronous;
  table.staleness = servers.staleness;
  if (servers.lifecycle) table.lifecycle = lifecycle_of(*servers.lifecycle);
  return table;
}

}  // namespace tessera::train
