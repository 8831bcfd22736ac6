#include "search/templates.hpp"

#include <algorithm>
#include <numeric>

#include "cost/warm_up.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/tensor_cut.hpp"
#include "search/depths.hpp"
#include "search/least_work.hpp"
#include "search/outer_choices.hpp"

namespace tessera::search {
namespace {

// Numbers of working nodes up to this are all tried: each of them can be the largest that degrees make up.
constexpr int kMostCounted = 1024;

class Templates {
 public:
  Templates(const BlockProblem& problem, const TemplateSpace& space, cost::CostModel& cost_model)
      : problem_(problem), space_(space), cost_model_(cost_model), group_(problem.cluster.groups[space.group]) {}

  std::optional<plan::Plan> best() {
    for (int nodes = group_.nodes; nodes > 0; --nodes) {
      // The others of the group are then left out. Of many only round numbers.
      const bool may_work_alone = problem_.space.idle_nodes && (nodes <= kMostCounted || nodes == round_number(nodes));
      if (nodes < group_.nodes && !may_work_alone) continue;
      devices_ = nodes * group_.devices_per_node;
      if (worth(work_.step(space_.group, devices_, 1, 1, {}))) of_devices();
    }
    return std::move(best_);
  }

 private:
  // Whether a plan that takes so long at least may be the best.
  bool worth(double least) const { return !best_ || least < best_->predicted->step.value; }
  bool out_of_time() const { return is_set(problem_.stop) || (space_.deadline && problem_.clock->now() > *space_.deadline); }

  void of_devices() {
    const BlockSpace& space = problem_.space;
    const GivenDegrees& given = space.given;
    const int cp = std::max(1, given.context);
    for (const std::int64_t stages : plan::divisors_of(devices_))
      for (const std::int64_t tp : plan::divisors_of(devices_ / stages)) {
        const std::int64_t dp = devices_ / (stages * tp * cp);
        if (stages * tp * cp * dp != devices_ || !GivenDegrees::allows(given.data, dp)) continue;
        if (!GivenDegrees::allows(given.stages, stages) || !GivenDegrees::allows(given.tensor, tp)) continue;
        if (stages > std::min(problem_.model.block_count(), space.most_stages) || tp > std::min(group_.domain(), space.most_tensor) ||
            cp > space.most_context || !all_cut(tp, cp))
          continue;
        for (const std::int64_t count : plan::divisors_of(problem_.global_batch))
          if (!out_of_time() && problem_.global_batch / count % dp == 0 && GivenDegrees::allows(given.micro_batches, count))
            consider(static_cast<int>(stages), static_cast<int>(tp), cp, static_cast<int>(dp), count);
      }
  }

  bool all_cut(std::int64_t tp, std::int64_t cp) const {
    const BlockSpace& space = problem_.space;
    return std::ranges::all_of(problem_.model.repeats, [&](const model::Repeat& repeat) {
      const model::BlockSpec& block = repeat.block;
      return tensor_of(space, block, tp) == tp && !plan::tensor_fault(problem_.model, block, tp) && plan::context_divides(block, cp) &&
             sequence_parallel_of(space, block, tp, cp) && !contexts_of(space, block, tp, cp).empty();
    });
  }

  // Experts are spread as far as the replicas go, where nothing else is given.
  int experts_over(std::int64_t ranks) const {
    if (const int given = problem_.space.given.experts; given > 0) return given;
    std::int64_t experts = 0;
    for (const model::Repeat& repeat : problem_.model.repeats)
      experts = std::gcd(experts, static_cast<std::int64_t>(plan::option_of(repeat.block, "experts")));
    return experts > 0 ? static_cast<int>(std::gcd(experts, ranks)) : 1;
  }

  // What a pipeline is, but for the strategy.
  struct Pipeline {
    Placement placement;
    std::int64_t micro_batches = 1;
    cost::WarmUp fill;
  };

  void consider(int ranks, int tp, int cp, int dp, std::int64_t count) {
    const GivenDegrees& given = problem_.space.given;
    if (given.experts > 0 && dp * cp % given.experts != 0) return;
    for (const plan::Schedule schedule : space_.schedules) {
      const bool interleaved = schedule == plan::Schedule::interleaved;
      if (ranks == 1 && (schedule != space_.schedules.front() || cost::several_stages_a_rank(schedule))) continue;
      if ((interleaved && count % ranks != 0) || (ranks > 1 && count < cost::least_micro_batches(schedule, ranks))) continue;
      const int fewest = is_v_shaped(schedule) ? 2 : !interleaved ? 1 : given.chunks > 0 ? given.chunks : 2;
      const int most = interleaved && given.chunks == 0 ? kMostChunks : fewest;
      for (int chunks = fewest; chunks <= most && ranks * chunks <= problem_.model.block_count(); ++chunks) {
        const Pipeline pipeline{
            {ranks, chunks, schedule}, count, cost::warm_up_of(schedule, chunks, cost_model_.weight_pass_bubble(space_.group))};
        if (worth(work_.step(space_.group, devices_ / ranks, ranks, count, pipeline.fill))) consider(pipeline, tp, cp, dp);
      }
    }
  }

  void consider(const Pipeline& pipeline, int tp, int cp, int dp) {
    for (int zero : space_.zero) {
      if (dp * cp == 1 && zero > 0) {
        if (space_.zero.size() > 1) continue;
        zero = 0;
      }
      if (zero > 1 && pipeline.placement.ranks > 1) continue;
      for (const model::Recompute recompute : problem_.space.recompute) {
        if (recompute == model::Recompute::selective && problem_.space.recompute.size() > 1 && cost_model_.attention_is_fused(space_.group))
          continue;
        plan::Strategy strategy{.dp = dp, .tp = tp, .zero = zero, .recompute = recompute, .cp = cp};
        consider(pipeline, strategy);
        if (!space_.sharding_groups || zero == 0) continue;
        strategy.shards = sharding_group(cost_model_, space_.group, strategy);
        if (strategy.shards > 0) consider(pipeline, strategy);
      }
      if (pipeline.placement.chunks > 1) consider_partly(pipeline, tp, cp, dp, zero);
    }
  }

  // Where not all layers fit without recomputation, people let the first so many of each stage be computed again, as few as will do.
  void consider_partly(const Pipeline& pipeline, int tp, int cp, int dp, int zero) {
    const std::vector<model::Recompute>& may = problem_.space.recompute;
    for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::full})
      if (std::ranges::find(may, recompute) == may.end()) return;
    plan::Strategy strategy{.dp = dp, .tp = tp, .zero = zero, .cp = cp};
    const std::vector<BlockShare> none = blocks_under(strategy, pipeline);
    strategy.recompute = model::Recompute::full;
    const std::vector<BlockShare> full = blocks_under(strategy, pipeline);
    for (const std::vector<int>& cuts : cuts_of(pipeline, none)) {
      const auto least_of = [&](int layers) {
        std::vector<BlockShare> blocks = none;
        for (std::size_t s = 0; s + 1 < cuts.size(); ++s)
          for (int b = cuts[s]; b < std::min(cuts[s] + layers, cuts[s + 1]); ++b) blocks[b] = full[b];
        return least(pipeline, blocks, cuts);
      };
      int deepest = 0;
      for (std::size_t s = 0; s + 1 < cuts.size(); ++s) deepest = std::max(deepest, cuts[s + 1] - cuts[s]);
      // None and all of them are templates of their own.
      if (const auto [step, bytes] = least_of(0);
          !worth(step) || (bytes <= limit() && fits(memory_of(made(strategy, pipeline, cuts, 0), cost_model_))))
        continue;
      for (int layers = 1; layers < deepest; ++layers) {
        const auto [step, bytes] = least_of(layers);
        if (bytes > limit()) continue;
        if (!worth(step) || price(strategy, pipeline, cuts, layers)) break;
      }
    }
  }

  void consider(const Pipeline& pipeline, const plan::Strategy& strategy) {
    const std::vector<BlockShare> blocks = blocks_under(strategy, pipeline);
    for (const std::vector<int>& cuts : cuts_of(pipeline, blocks)) {
      const auto [step, bytes] = least(pipeline, blocks, cuts);
      if (bytes <= limit() && worth(step)) price(strategy, pipeline, cuts);
    }
  }

  plan::Strategy strategy_of(int block, plan::Strategy strategy) const {
    if (block == 0 || block + 1 == problem_.model.block_count()) strategy.recompute = model::Recompute::none;
    const model::BlockSpec& spec = problem_.model.repeats[cost_model_.repeat_of()[block]].block;
    strategy.sequence_parallel = *sequence_parallel_of(problem_.space, spec, strategy.tp, strategy.cp);
    strategy.context = contexts_of(problem_.space, spec, strategy.tp, strategy.cp).front();
    if (spec.dims.contains("experts")) strategy.ep = experts_over(strategy.dp * strategy.cp);
    return strategy;
  }

  // What a block adds to a pipeline rank.
  struct BlockShare {
    double busy = 0;   // seconds of a step, less the fill
    double fill = 0;   // seconds
    double state = 0;  // bytes
    double saved = 0;  // bytes of a micro-batch
  };

  std::vector<BlockShare> blocks_under(const plan::Strategy& strategy, const Pipeline& pipeline) {
    const std::vector<int>& repeat_of = cost_model_.repeat_of();
    const auto m = static_cast<double>(pipeline.micro_batches);
    std::vector<BlockShare> out;
    for (std::size_t b = 0; b < repeat_of.size(); ++b) {
      // The first and the last block may be run otherwise than others of their kind.
      if (b > 1 && b + 1 < repeat_of.size() && repeat_of[b] == repeat_of[b - 1]) {
        out.push_back(out.back());
        continue;
      }
      const cost::BlockLoad& load = cost_model_.block(repeat_of[b], space_.group, strategy_of(static_cast<int>(b), strategy),
                                                      problem_.global_batch / pipeline.micro_batches);
      const double fill = pipeline.fill.forward * load.forward + pipeline.fill.backward * load.backward();
      out.push_back({m * (load.forward + load.backward()) - fill + load.exchange + load.optimizer, fill, load.state_bytes(), load.saved});
    }
    return out;
  }

  // Stages alone on their ranks are of equal depth; of others, three ways to cut them.
  std::vector<std::vector<int>> cuts_of(const Pipeline& pipeline, const std::vector<BlockShare>& blocks) {
    const Placement& placement = pipeline.placement;
    const int count = static_cast<int>(blocks.size());
    std::vector<std::vector<int>> out;
    if (count - 2 >= placement.stages()) out.push_back(even_inner_cuts(count, placement.stages()));
    if (placement.chunks > 1 || out.empty()) out.push_back(even_cuts(count, placement.stages()));
    if (placement.chunks > 1) {
      std::vector<double> busy;
      for (const BlockShare& block : blocks) busy.push_back(block.busy);
      // Of what most stages pass on.
      const double bytes =
          cost_model_.input_bytes(cost_model_.repeat_of()[blocks.size() / 2], problem_.global_batch / pipeline.micro_batches);
      const int width = devices_ / placement.ranks;
      const double message = cost_model_.messages(bytes, space_.group, width, space_.group, width);
      out.push_back(balanced_cuts(busy, (static_cast<double>(pipeline.micro_batches) - pipeline.fill.backward) * message,
                                  std::vector<double>(placement.ranks, 1.0), placement));
    }
    for (auto cuts = out.begin(); cuts != out.end();) cuts = std::find(out.begin(), cuts, *cuts) == cuts ? cuts + 1 : out.erase(cuts);
    return out;
  }

  // No less are the step, in seconds, and the bytes of the first pipeline rank.
  std::pair<double, double> least(const Pipeline& pipeline, const std::vector<BlockShare>& blocks, const std::vector<int>& cuts) const {
    const Placement& placement = pipeline.placement;
    std::vector<double> busy(placement.ranks, 0.0);
    // One with whole micro-batches in flight under a V, where chunks hold different numbers of them.
    const auto held = static_cast<double>(
        is_v_shaped(placement.schedule) ? 1 : plan::in_flight(placement.schedule, 0, placement.ranks, pipeline.micro_batches));
    double fill = 0;
    double bytes = cost_model_.process_bytes(space_.group);
    for (int s = 0; s < placement.stages(); ++s)
      for (int b = cuts[s]; b < cuts[s + 1]; ++b) {
        const BlockShare& block = blocks[b];
        busy[placement.rank_of(s)] += block.busy;
        fill += block.fill;
        if (placement.rank_of(s) == 0) bytes += block.state + held * block.saved;
      }
    return {std::ranges::max(busy) + fill + cost_model_.step_host(space_.group), bytes};
  }

  double limit() const { return problem_.space.memory * cost_model_.memory_limit(space_.group); }

  // `layers`: of each stage, the first ones, are computed again where the strategy says so.
  plan::Plan made(const plan::Strategy& strategy, const Pipeline& pipeline, const std::vector<int>& cuts, int layers) {
    plan::Plan plan = frame_;
    plan.micro_batches = pipeline.micro_batches;
    plan.schedule = pipeline.placement.schedule;
    for (int rank = 0; rank < devices_; ++rank)
      plan.ranks.push_back({space_.group, rank / group_.devices_per_node, rank % group_.devices_per_node});
    const int width = devices_ / pipeline.placement.ranks;
    for (int s = 0; s < pipeline.placement.stages(); ++s) {
      plan::Stage stage;
      stage.ranks.resize(width);
      std::iota(stage.ranks.begin(), stage.ranks.end(), pipeline.placement.rank_of(s) * width);
      for (int b = cuts[s]; b < cuts[s + 1]; ++b) {
        plan::Strategy here = strategy_of(b, strategy);
        if (b - cuts[s] >= layers) here.recompute = model::Recompute::none;
        add_block(stage, b, here);
      }
      plan.stages.push_back(std::move(stage));
    }
    return plan;
  }

  bool fits(const std::vector<Bytes>& memory) const { return static_cast<double>(std::ranges::max_element(memory)->value) <= limit(); }

  // False where it does not fit.
  bool price(const plan::Strategy& strategy, const Pipeline& pipeline, const std::vector<int>& cuts, int layers = 1 << 30) {
    plan::Plan plan = made(strategy, pipeline, cuts, layers);
    plan.predicted = predict(plan, cost_model_);
    if (!fits(plan.predicted->memory)) return false;
    if (worth(plan.predicted->step.value)) best_ = std::move(plan);
    return true;
  }

  const BlockProblem& problem_;
  const TemplateSpace& space_;
  cost::CostModel& cost_model_;
  const cluster::ResourceGroup& group_;
  const LeastWork work_{problem_, cost_model_};
  const plan::Plan frame_ = frame_of(problem_, 1, {});
  int devices_ = 0;  // that work
  std::optional<plan::Plan> best_;
};

}  // namespace

std::optional<plan::Plan> best_template(const BlockProblem& problem, const TemplateSpace& space, cost::CostModel& cost_model) {
  if (!problem.cluster.groups[space.group].device.has(problem.precision)) return {};
  return Templates(problem, space, cost_model).best();
}

}  // namespace tessera::search
