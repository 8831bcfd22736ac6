#include <algorithm>

#include "base/error.hpp"
#include "cost/cost.hpp"
#include "cost/priced_plan.hpp"
#include "cost/warm_up.hpp"

namespace tessera::cost {
namespace {

// One micro-batch through a pipeline rank, and a step of it.
struct PipelineRankLoad {
  BlockLoad sum;        // over its blocks: seconds
  double reshard = 0;   // both passes
  double messages = 0;  // both directions
  double forward = 0;
  double backward = 0;
  double warm_up = 0;
  double once = 0;  // a step
  double passes() const { return forward + backward + messages; }
};

class ClosedForm {
 public:
  ClosedForm(const plan::Plan& plan, CostModel& cost_model)
      : plan_(plan), cost_model_(cost_model), priced_(plan, cost_model), pipeline_(priced_.pipeline()) {
    for (int pipeline_rank = 0; pipeline_rank < pipeline_.size; ++pipeline_rank) rank_loads_.push_back(load_of(pipeline_rank));
  }

  // Passes and exchange of a pipeline rank, between its own warm-up and that of the others.
  double busy(const PipelineRankLoad& pipeline_rank) const {
    return static_cast<double>(plan_.micro_batches) * pipeline_rank.passes() - pipeline_rank.warm_up +
           (plan_.delayed_exchange ? 0 : pipeline_rank.once);
  }
  const PipelineRankLoad& slowest_rank() const {
    return *std::max_element(rank_loads_.begin(), rank_loads_.end(), [&](const auto& a, const auto& b) { return busy(a) < busy(b); });
  }
  double warm_ups() const {
    double out = 0;
    for (const PipelineRankLoad& pipeline_rank : rank_loads_) out += pipeline_rank.warm_up;
    return out;
  }
  double step_host() const {
    double out = 0;
    for (int stage = 0; stage < static_cast<int>(plan_.stages.size()); ++stage)
      out = std::max(out, cost_model_.step_host(priced_.devices(stage)));
    return out;
  }
  Seconds step() const { return Seconds((plan_.delayed_exchange ? delayed_passes() : busy(slowest_rank()) + warm_ups()) + step_host()); }

  plan::Prediction predict() const {
    const auto m = static_cast<double>(plan_.micro_batches);
    const PipelineRankLoad& slowest = slowest_rank();
    const double warm_up = warm_ups();
    const double host = step_host();
    plan::Prediction out;
    out.step = step();
    const BlockLoad& sum = slowest.sum;
    double bubble = warm_up - slowest.warm_up;
    double exchange = sum.exchange;
    if (plan_.delayed_exchange) {
      // The exchange of the pipeline rank, and of those that it waits for, stands in the bubble as far as there is one.
      const double rest = out.step.value - host - m * slowest.passes() - sum.optimizer;
      bubble = std::min(bubble, rest);
      exchange = rest - bubble;
    }
    const std::pair<const char*, double> parts[] = {{"matrix products", m * sum.spent.products},
                                                    {"attention", m * sum.spent.attention},
                                                    {"elementwise", m * sum.spent.elementwise},
                                                    {"computed again", m * sum.again},
                                                    {"tensor-parallel exchange", m * sum.spent.tensor_exchange},
                                                    {"context-parallel exchange", m * sum.spent.context_exchange},
                                                    {"expert exchange", m * sum.spent.expert_exchange},
                                                    {"exchange of statistics", m * sum.spent.replica_exchange},
                                                    {"parameter exchange", m * sum.parameter_exchange},
                                                    {"resharding", m * slowest.reshard},
                                                    {"host", m * sum.spent.host + host},
                                                    {"messages between stages", m * slowest.messages},
                                                    {"bubble", bubble},
                                                    {"gradient exchange", exchange},
                                                    {"optimizer", sum.optimizer}};
    for (const auto& [name, seconds] : parts)
      if (seconds != 0) out.parts.emplace_back(name, Seconds(seconds));
    // On several kinds of device passes take what the slowest does in each block, and the parts are of one kind.
    if (cost_model_.parts_of(priced_.devices(static_cast<int>(&slowest - rank_loads_.data()))).parts.size() > 1) {
      double rest = out.step.value;
      for (const auto& [name, seconds] : out.parts) rest -= seconds.value;
      if (rest > 0) out.parts.emplace_back("other devices", Seconds(rest));
    }
    out.memory = priced_.memory();
    double busy_ranks = 0;
    for (int pipeline_rank = 0; pipeline_rank < pipeline_.size; ++pipeline_rank) {
      const PipelineRankLoad& load = rank_loads_[pipeline_rank];
      const double stepped = plan_.delayed_exchange ? load.sum.optimizer : load.once;
      busy_ranks += (m * load.passes() + stepped + host) * static_cast<double>(plan_.stages[pipeline_rank].ranks.size());
    }
    out.bubble = std::max(0.0, 1 - busy_ranks / (out.step.value * static_cast<double>(plan_.ranks.size())));
    return out;
  }

  // With the exchanges of each pipeline rank in the next step, before its first pass. From the first pass of pipeline rank k on, the chain
  // of a step goes over the busiest of the pipeline ranks behind it back to k, whose own exchange and optimizer then come before its next
  // first pass:
  //   T >= max over i >= k of (m (f + b)_i - fill_i)  +  sum over j >= k of fill_j  +  once_k   for every k.
  // Where gradients are used a step late, exchanges stand beside all of the next step, and its optimizer waits for them.
  double delayed_passes() const {
    if (plan_.staleness > 0) {
      double exchange = 0, optimizer = 0;
      for (const PipelineRankLoad& pipeline_rank : rank_loads_) {
        exchange = std::max(exchange, pipeline_rank.sum.exchange);
        optimizer = std::max(optimizer, pipeline_rank.sum.optimizer);
      }
      return std::max(busy(slowest_rank()) + warm_ups(), exchange) + optimizer;
    }
    double out = 0;
    double busiest = 0;
    double warm_up = 0;
    for (auto pipeline_rank = rank_loads_.rbegin(); pipeline_rank != rank_loads_.rend(); ++pipeline_rank) {
      busiest = std::max(busiest, static_cast<double>(plan_.micro_batches) * pipeline_rank->passes() - pipeline_rank->warm_up);
      warm_up += pipeline_rank->warm_up;
      out = std::max(out, busiest + warm_up + pipeline_rank->once);
    }
    return out;
  }

 private:
  PipelineRankLoad load_of(int pipeline_rank) const {
    PipelineRankLoad out;
    for (int chunk = 0; chunk < pipeline_.chunks; ++chunk)
      add_stage(stage_at(plan_.schedule, pipeline_rank, chunk, pipeline_.size), pipeline_rank, out);
    // With fewer micro-batches as if backward passes were whole and stages not interleaved.
    const bool enough = plan_.micro_batches >= least_micro_batches(plan_.schedule, pipeline_.size);
    const WarmUp warm_up = warm_up_of(enough ? plan_.schedule : plan::Schedule::one_f_one_b, pipeline_.chunks,
                                      cost_model_.weight_pass_bubble(priced_.devices(pipeline_rank)));
    out.warm_up = warm_up.forward * out.forward + warm_up.backward * (out.backward + out.messages);
    out.once = out.sum.exchange + out.sum.optimizer;
    return out;
  }

  void add_stage(int index, int pipeline_rank, PipelineRankLoad& out) const {
    const plan::Stage& stage = plan_.stages[index];
    const int devices = priced_.devices(index);
    const bool tied_elsewhere = !priced_.holds_first_block(pipeline_rank);
    for (int block = stage.first_block(); block < stage.last_block(); ++block) {
      const BlockLoad& load = priced_.load(index, block);
      out.sum.exchange += load.exchange + (tied_elsewhere ? load.tied_exchange : 0);
      out.sum.optimizer += load.optimizer;
      out.sum.spent += load.spent;
      out.sum.again += load.again;
      out.sum.parameter_exchange += load.parameter_exchange;
      out.forward += load.forward;
      out.backward += load.backward();
      if (block == stage.first_block()) continue;
      const double reshard = priced_.reshard(index, block);
      out.reshard += 2 * reshard;
      out.forward += reshard;
      out.backward += reshard;
    }
    out.forward += cost_model_.micro_batch_host(devices);
    out.sum.spent.host += cost_model_.micro_batch_host(devices);
    if (index + 1 == static_cast<int>(plan_.stages.size())) return;
    const plan::Stage& next = plan_.stages[index + 1];
    if (next.ranks == stage.ranks) return;
    out.messages += cost_model_.messages(cost_model_.input_bytes(priced_.repeat(next.first_block()), plan_.samples()), devices,
                                         stage.width(), priced_.devices(index + 1), next.width());
  }

  const plan::Plan& plan_;
  CostModel& cost_model_;
  const PricedPlan priced_;
  const plan::Pipeline pipeline_;
  std::vector<PipelineRankLoad> rank_loads_;
};

ClosedForm closed_form_of(const plan::Plan& plan, CostModel& cost_model) {
  if (plays_exchanges(plan, cost_model.cluster()))
    throw Error(ErrorCode::internal, "the step of a plan whose exchanges are for a clock to play through has no closed form", plan.where,
                "accelerators in 16 or fewer bits", "the simulator predicts it");
  return {plan, cost_model};
}

}  // namespace

plan::Prediction predict(const plan::Plan& plan, CostModel& cost_model) { return closed_form_of(plan, cost_model).predict(); }

Seconds step_of(const plan::Plan& plan, CostModel& cost_model) { return closed_form_of(plan, cost_model).step(); }

}  // namespace tessera::cost
