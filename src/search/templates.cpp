#include "search/templates.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "cost/warm_up.hpp"
#include "plan/divisors.hpp"
#include "plan/schedule/schedule.hpp"
#include "plan/tensor_cut.hpp"
#include "search/outer_choices.hpp"
#include "search/stage_fronts.hpp"

namespace tessera::search {
namespace {

// Interleaved stages of one rank are tried up to this number.
constexpr int kMostChunks = 8;
// Numbers of working nodes up to this are all tried: each of them can be the largest that degrees make up.
constexpr int kMostCounted = 1024;

class Templates {
 public:
  Templates(const BlockProblem& problem, const TemplateSpace& space, cost::CostModel& cost_model)
      : problem_(problem), space_(space), cost_model_(cost_model), group_(problem.cluster.groups[static_cast<std::size_t>(space.group)]) {}

  TemplateAnswer best() {
    for (int nodes = group_.nodes; nodes > 0; --nodes) {
      if (nodes < group_.nodes && !(problem_.space.idle_nodes && may_work_alone(nodes))) continue;
      devices_ = nodes * group_.devices_per_node;
      if (least_step() < best_step()) of_devices();
    }
    if (out_.best) out_.smallest.reset();
    return std::move(out_);
  }

 private:
  // The others of the group are then left out. Of many only round numbers.
  static bool may_work_alone(int nodes) { return nodes <= kMostCounted || nodes == round_number(nodes); }

  // No plan on so many devices is faster than they compute at their peak.
  double least_step() const { return flops_ / (devices_ * group_.device.peak_of(problem_.precision).value); }
  double best_step() const { return out_.best ? out_.best->predicted->step.value : std::numeric_limits<double>::infinity(); }
  // With nothing to show yet, the search goes on.
  bool out_of_time() const { return space_.deadline && (out_.best || !space_.needed) && problem_.clock->now() > *space_.deadline; }

  void of_devices() {
    ranks_.clear();
    const int blocks = problem_.model.block_count();
    const GivenDegrees& given = problem_.space.given;
    for (const std::int64_t stages : plan::divisors_of(devices_))
      for (const std::int64_t tp : plan::divisors_of(devices_ / stages)) {
        if (!GivenDegrees::allows(given.stages, stages) || !GivenDegrees::allows(given.tensor, tp)) continue;
        if (stages > std::min(blocks, space_.most_stages) || tp > std::min(group_.domain(), space_.most_tensor) || !all_divide(tp))
          continue;
        for (const std::int64_t cp : plan::divisors_of(devices_ / stages / tp)) {
          const std::int64_t dp = devices_ / stages / tp / cp;
          if (cp > std::max(given.context, space_.most_context) || !all_cut(cp) || !GivenDegrees::allows(given.context, cp) ||
              !GivenDegrees::allows(given.data, dp))
            continue;
          for (const std::int64_t count : plan::divisors_of(problem_.global_batch))
            if (!out_of_time() && problem_.global_batch / count % dp == 0 && GivenDegrees::allows(given.micro_batches, count))
              consider(static_cast<int>(stages), static_cast<int>(tp), static_cast<int>(cp), static_cast<int>(dp), count);
        }
      }
  }

  bool all_divide(std::int64_t tp) const {
    return std::all_of(problem_.model.repeats.begin(), problem_.model.repeats.end(),
                       [&](const model::Repeat& repeat) { return !plan::tensor_fault(repeat.block, tp); });
  }
  bool all_cut(std::int64_t cp) const {
    return std::all_of(problem_.model.repeats.begin(), problem_.model.repeats.end(),
                       [&](const model::Repeat& repeat) { return context_divides(repeat.block, cp); });
  }

  // Experts are spread as far as the replicas go, where nothing else is given.
  int experts_over(std::int64_t ranks) const {
    if (const int given = problem_.space.given.experts; given > 0) return given;
    std::int64_t out = ranks;
    bool any = false;
    for (const model::Repeat& repeat : problem_.model.repeats)
      if (const auto found = repeat.block.dims.find("experts"); found != repeat.block.dims.end() && found->second > 0) {
        out = std::gcd(out, static_cast<std::int64_t>(found->second));
        any = true;
      }
    return any ? static_cast<int>(out) : 1;
  }

  void consider(int stages, int tp, int cp, int dp, std::int64_t count) {
    const int layers = problem_.model.block_count() - 2;
    if (const int experts = problem_.space.given.experts; experts > 0 && dp * cp % experts != 0) return;
    for (const plan::Schedule schedule : space_.schedules) {
      const bool interleaved = schedule == plan::Schedule::interleaved;
      if (stages == 1 && (schedule != space_.schedules.front() || interleaved || is_v_shaped(schedule))) continue;
      if ((interleaved && count % stages != 0) || (stages > 1 && count < cost::least_micro_batches(schedule, stages))) continue;
      for (int chunks = interleaved ? 2 : 1; chunks <= (interleaved ? kMostChunks : 1); ++chunks) {
        const int all = is_v_shaped(schedule) ? 2 * stages : stages * chunks;
        if (all > std::max(1, layers) || (interleaved && layers % all != 0)) continue;
        for (int zero : space_.zero) {
          if (dp * cp == 1 && zero > 0) {
            if (space_.zero.size() > 1) continue;
            zero = 0;
          }
          if (zero > 1 && stages > 1) continue;
          for (const model::Recompute recompute : problem_.space.recompute) {
            if (recompute == model::Recompute::selective && problem_.space.recompute.size() > 1 &&
                cost_model_.attention_is_fused(space_.group))
              continue;
            plan::Strategy strategy;
            strategy.dp = dp;
            strategy.tp = tp;
            strategy.cp = cp;
            strategy.zero = zero;
            strategy.recompute = recompute;
            strategy.sequence_parallel = tp > 1;
            price(strategy, stages, all, count, schedule);
          }
        }
      }
    }
  }

  // `all`: stages with those that share ranks counted apart.
  void price(const plan::Strategy& strategy, int places, int all, std::int64_t count, plan::Schedule schedule) {
    plan::Plan plan;
    plan.model_fingerprint = model_;
    plan.cluster_fingerprint = cluster_;
    plan.precision = problem_.precision;
    plan.global_batch = problem_.global_batch;
    plan.micro_batches = count;
    plan.schedule = schedule;
    plan.ranks = ranks();
    const int blocks = problem_.model.block_count();
    const int layers = blocks - 2;
    const int width = devices_ / places;
    int next = 0;
    for (int s = 0; s < all; ++s) {
      plan::Stage stage;
      const int place = is_v_shaped(schedule) && s >= places ? 2 * places - 1 - s : s % places;
      stage.ranks.resize(static_cast<std::size_t>(width));
      std::iota(stage.ranks.begin(), stage.ranks.end(), place * width);
      const int depth = layers / all + (s < layers % all ? 1 : 0);
      const int last = s + 1 == all ? blocks : next + depth + (s == 0 ? 1 : 0);
      for (int b = next; b < last; ++b) {
        plan::Strategy here = strategy;
        if (b == 0 || b + 1 == blocks) here.recompute = model::Recompute::none;
        const model::BlockSpec& block =
            problem_.model.repeats[static_cast<std::size_t>(cost_model_.repeat_of()[static_cast<std::size_t>(b)])].block;
        if (block.dims.contains("experts")) here.ep = experts_over(strategy.dp * strategy.cp);
        if (!stage.runs.empty() && stage.runs.back().strategy == here)
          ++stage.runs.back().last;
        else
          stage.runs.push_back({b, b + 1, here});
      }
      next = last;
      plan.stages.push_back(std::move(stage));
    }
    plan.predicted = predict(plan, cost_model_);
    ++out_.considered;
    const double limit = problem_.space.memory * cost_model_.memory_limit(space_.group);
    const Bytes most = most_of(plan);
    if (static_cast<double>(most.value) > limit) {
      if (!out_.smallest || most < most_of(*out_.smallest)) out_.smallest = std::move(plan);
      return;
    }
    if (!out_.best || plan.predicted->step < out_.best->predicted->step) out_.best = std::move(plan);
  }

  // Of its fullest rank.
  static Bytes most_of(const plan::Plan& plan) { return *std::max_element(plan.predicted->memory.begin(), plan.predicted->memory.end()); }

  const std::vector<plan::RankPlace>& ranks() {
    if (ranks_.empty())
      for (int rank = 0; rank < devices_; ++rank)
        ranks_.push_back({space_.group, rank / group_.devices_per_node, rank % group_.devices_per_node});
    return ranks_;
  }

  const BlockProblem& problem_;
  const TemplateSpace& space_;
  cost::CostModel& cost_model_;
  const cluster::ResourceGroup& group_;
  const double flops_ = model::training_flops_per_sample(problem_.model).value * static_cast<double>(problem_.global_batch);
  int devices_ = 0;  // that work
  const std::string model_ = problem_.model.fingerprint();
  const std::string cluster_ = problem_.cluster.fingerprint();
  std::vector<plan::RankPlace> ranks_;
  TemplateAnswer out_;
};

}  // namespace

TemplateAnswer best_template(const BlockProblem& problem, const TemplateSpace& space, cost::CostModel& cost_model) {
  if (!problem.cluster.groups[static_cast<std::size_t>(space.group)].device.has(problem.precision)) return {};
  return Templates(problem, space, cost_model).best();
}

}  // namespace tessera::search
