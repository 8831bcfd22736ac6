#include "search/stage_options.hpp"

#include <algorithm>
#include <numeric>

#include "model/forms.hpp"
#include "plan/tensor_cut.hpp"

namespace tessera::search {
namespace {

// Lists the options of the blocks of one stage.
class Lister {
 public:
  Lister(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks)
      : problem_(problem), cost_model_(cost_model), ranks_(ranks), samples_(problem.global_batch / ranks.micro_batches) {}

  StageOptions list() {
    for (std::size_t repeat = 0; repeat < problem_.model.repeats.size() && out_.possible; ++repeat) {
      out_.blocks.emplace_back();
      list(static_cast<int>(repeat));
      out_.possible = !out_.blocks.back().empty();
    }
    return std::move(out_);
  }

 private:
  void list(int repeat) {
    const model::BlockSpec& block = problem_.model.repeats[repeat].block;
    const BlockSpace& space = problem_.space;
    const int domain = cost_model_.domain(ranks_.devices);
    const auto experts = static_cast<std::int64_t>(plan::option_of(block, "experts"));
    for (const std::int64_t tp : plan::divisors_of(ranks_.width)) {
      if (!allowed(block, ranks_.fixed.tensor, tp) || !allowed(block, space.given.tensor, tp)) continue;
      if (tp > (space.uniform ? space.most_tensor : std::min(domain, space.most_tensor)) || plan::tensor_fault(problem_.model, block, tp))
        continue;
      // A limit of the space: without it each stage would be searched twice where nothing is cut.
      if (tp == 1 && cost_model_.parts_of(ranks_.devices).dealt_over > 0) continue;
      for (const std::int64_t cp : plan::divisors_of(ranks_.width / tp)) {
        if (!GivenDegrees::allows(ranks_.fixed.context, cp)) continue;
        if (cp > space.most_context || !GivenDegrees::allows(space.given.context, cp) || !plan::context_divides(block, cp)) continue;
        const std::int64_t dp = ranks_.width / (tp * cp);
        const std::optional<bool> sequence_parallel = sequence_parallel_of(space, block, tp, cp);
        // What stands whole has more replicas.
        const std::int64_t replicas = whole(block) ? dp / std::max(1, ranks_.fixed.tensor) : dp;
        if (!GivenDegrees::allows(space.given.data, replicas) || !sequence_parallel || samples_ < dp * model::least_samples(block, dp))
          continue;
        std::vector<BlockOption> here;
        for (const std::int64_t ep : plan::divisors_of(std::max<std::int64_t>(1, std::gcd(experts, dp * cp)))) {
          if (experts > 0 && !GivenDegrees::allows(space.given.experts, ep)) continue;
          if (experts > 0 && space.experts_cross_hosts && ep <= most_on_a_host()) continue;
          plan::Strategy strategy{.dp = static_cast<int>(dp),
                                  .tp = static_cast<int>(tp),
                                  .sequence_parallel = *sequence_parallel,
                                  .cp = static_cast<int>(cp),
                                  .ep = static_cast<int>(ep)};
          if (!cost_model_.divides(ranks_.devices, strategy, samples_)) continue;
          for (const model::ContextKind context : contexts_of(space, block, tp, cp)) {
            strategy.context = context;
            add_states(repeat, strategy, here);
          }
        }
        std::ranges::stable_sort(here, {}, [](const BlockOption& option) { return option.forward + option.backward; });
        drop_covered(here, [](const BlockOption& a, const BlockOption& b) {
          return a.forward <= b.forward && a.backward <= b.backward && a.once <= b.once && a.fixed <= b.fixed && a.saved <= b.saved &&
                 a.saved_for_weight <= b.saved_for_weight && a.workspace <= b.workspace && a.tied_once <= b.tied_once &&
                 a.tied_fixed <= b.tied_fixed;
        });
        out_.blocks.back().insert(out_.blocks.back().end(), here.begin(), here.end());
      }
    }
  }

  int most_on_a_host() const {
    int most = 1;
    for (const cost::StageDevices::Part& part : cost_model_.parts_of(ranks_.devices).parts)
      most = std::max(most, part.threads > 0 ? part.neighbours : problem_.cluster.groups[part.group].devices_per_node);
    return most;
  }

  bool whole(const model::BlockSpec& block) const { return tensor_of(problem_.space, block, 2) == 1; }
  bool allowed(const model::BlockSpec& block, std::int64_t given, std::int64_t tp) const {
    return whole(block) ? tp == 1 : GivenDegrees::allows(given, tp);
  }

  // Every way to keep the state and the activations.
  void add_states(int repeat, plan::Strategy strategy, std::vector<BlockOption>& out) {
    const std::vector<model::Repeat>& repeats = problem_.model.repeats;
    const bool end = repeat == 0 || repeat + 1 == static_cast<int>(repeats.size());
    const std::vector<model::Recompute>& recomputes = problem_.space.recompute;
    for (const auto& [zero, shards] : sharding_of(strategy)) {
      strategy.zero = zero;
      strategy.shards = shards;
      for (const model::Recompute recompute : recomputes) {
        // Fused attention computes its scores again by itself.
        if (recompute == model::Recompute::selective && recomputes.size() > 1 && (end || cost_model_.attention_is_fused(ranks_.devices)))
          continue;
        strategy.recompute = end ? model::Recompute::none : recompute;
        for (const bool offload : {false, true}) {
          if (offload && !problem_.space.offload) continue;
          strategy.offload_optimizer = offload;
          out_.priced += std::ssize(cost_model_.parts_of(ranks_.devices).parts);
          const cost::BlockLoad load = cost_model_.priced(repeat, ranks_.devices, strategy, samples_);
          out.push_back({strategy, layout_of(strategy), load.forward, load.backward(), load.exchange + load.optimizer, load.state_bytes(),
                         load.saved, load.saved_for_weight, load.workspace, load.tied_exchange, load.tied_bytes});
        }
        if (end) break;
      }
    }
  }

  // ZeRO's stages, each over all replicas and over those of one domain: {zero, shards}.
  std::vector<std::pair<int, int>> sharding_of(const plan::Strategy& strategy) const {
    if (strategy.copies() == 1) return {{0, 0}};
    if (problem_.space.uniform) return {{ranks_.fixed.zero, 0}};
    const int group = sharding_group(cost_model_, ranks_.devices, strategy);
    std::vector<std::pair<int, int>> out;
    for (const int zero : problem_.space.zero) {
      out.emplace_back(zero, 0);
      if (zero > 0 && group > 0) out.emplace_back(zero, group);
    }
    return out;
  }

  int layout_of(const plan::Strategy& strategy) {
    const auto found =
        std::ranges::find_if(out_.layouts, [&](const plan::Strategy& s) { return s.tp == strategy.tp && s.cp == strategy.cp; });
    if (found != out_.layouts.end()) return static_cast<int>(found - out_.layouts.begin());
    out_.layouts.push_back({.dp = strategy.dp, .tp = strategy.tp, .cp = strategy.cp});
    return static_cast<int>(out_.layouts.size()) - 1;
  }

  const BlockProblem& problem_;
  cost::CostModel& cost_model_;
  const StageRanks& ranks_;
  const std::int64_t samples_;
  StageOptions out_;
};

}  // namespace

std::int64_t tensor_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor) {
  return space.whole_blocks && !model::cut_by_nn(block) ? 1 : tensor;
}

int sharding_group(const cost::CostModel& cost_model, int devices, const plan::Strategy& strategy) {
  const cost::StageDevices& on = cost_model.parts_of(devices);
  const int inside = on.parts.size() > 1 || on.dealt_over > 0 ? 0 : cost_model.domain(devices) / strategy.tp;
  return inside > 1 && inside < strategy.copies() && strategy.copies() % inside == 0 ? inside : 0;
}

std::vector<model::ContextKind> contexts_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor,
                                            std::int64_t context) {
  using model::ContextKind;
  // Blocks without attention have nothing to exchange.
  if (context == 1 || plan::option_of(block, "heads") == 0) return {ContextKind::ring};
  std::vector<ContextKind> out;
  if (space.context != ContextKind::ulysses) out.push_back(ContextKind::ring);
  if (space.context != ContextKind::ring && plan::heads_divide(block, tensor, context)) out.push_back(ContextKind::ulysses);
  return out;
}

std::optional<bool> sequence_parallel_of(const BlockSpace& space, const model::BlockSpec& block, std::int64_t tensor,
                                         std::int64_t context) {
  if (tensor == 1 || space.sequence_parallel == SequenceParallel::never) return false;
  if (plan::sequence_divides(block, tensor * context)) return true;
  return space.sequence_parallel == SequenceParallel::always ? std::nullopt : std::optional(false);
}

StageOptions options_of(const BlockProblem& problem, cost::CostModel& cost_model, const StageRanks& ranks) {
  return Lister(problem, cost_model, ranks).list();
}

}  // namespace tessera::search
