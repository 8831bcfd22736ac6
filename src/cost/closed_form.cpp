#include <algorithm>

#include "base/error.hpp"
#include "cost/cost_model.hpp"
#include "cost/warm_up.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::cost {
namespace {

// In pipeline rank of a part: all of a stage's devices.
constexpr int kWhole = -1;

// One micro-batch through a pipeline rank, and a step of it.
struct PipelineRankLoad {
  BlockLoad sum;        // over its blocks
  double reshard = 0;   // both passes
  double messages = 0;  // both directions
  double forward = 0;
  double backward = 0;
  double warm_up = 0;
  double once = 0;  // a step
  double passes() const { return forward + backward + messages; }
};

class LoadedPrediction {
 public:
  LoadedPrediction(const plan::Plan& plan, CostModel& cost_model)
      : plan_(plan), cost_model_(cost_model), pipeline_(pipeline_of(plan)), samples_(plan.global_batch / plan.micro_batches) {
    for (const plan::Stage& stage : plan.stages) devices_.push_back(cost_model.devices_of(plan, stage));
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
    for (const int devices : devices_) out = std::max(out, cost_model_.step_host(devices));
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
    const std::pair<const char*, double> parts[] = {{"matrix products", m * sum.products},
                                                    {"attention", m * sum.attention},
                                                    {"elementwise", m * sum.elementwise},
                                                    {"computed again", m * sum.again},
                                                    {"tensor-parallel exchange", m * sum.tensor_exchange},
                                                    {"context-parallel exchange", m * sum.context_exchange},
                                                    {"expert exchange", m * sum.expert_exchange},
                                                    {"parameter exchange", m * sum.parameter_exchange},
                                                    {"resharding", m * slowest.reshard},
                                                    {"host", m * sum.host + host},
                                                    {"messages between stages", m * slowest.messages},
                                                    {"bubble", bubble},
                                                    {"gradient exchange", exchange},
                                                    {"optimizer", sum.optimizer}};
    for (const auto& [name, seconds] : parts)
      if (seconds != 0) out.parts.emplace_back(name, Seconds(seconds));
    // On several kinds of device passes take what the slowest does in each block, and the parts are of one kind.
    const auto devices = static_cast<std::size_t>(&slowest - rank_loads_.data());
    if (cost_model_.parts_of(devices_[devices]).parts.size() > 1) {
      double rest = out.step.value;
      for (const auto& [name, seconds] : out.parts) rest -= seconds.value;
      if (rest > 0) out.parts.emplace_back("other devices", Seconds(rest));
    }
    out.memory.resize(plan_.ranks.size());
    double busy_ranks = 0;
    for (int pipeline_rank = 0; pipeline_rank < pipeline_.size; ++pipeline_rank) {
      std::size_t rank = 0;
      const plan::Stage& stage = plan_.stages[static_cast<std::size_t>(pipeline_rank)];
      for_parts(pipeline_rank, [&](int part, std::size_t last) {
        double bytes = 0;
        for (const auto& [name, term] : memory(pipeline_rank, part)) bytes += term;
        for (; rank < last; ++rank) out.memory[static_cast<std::size_t>(stage.ranks[rank])] = Bytes(static_cast<std::int64_t>(bytes));
      });
      const PipelineRankLoad& load = rank_loads_[static_cast<std::size_t>(pipeline_rank)];
      const double stepped = plan_.delayed_exchange ? load.sum.optimizer : load.once;
      busy_ranks +=
          (m * load.passes() + stepped + host) * static_cast<double>(plan_.stages[static_cast<std::size_t>(pipeline_rank)].ranks.size());
    }
    out.bubble = std::max(0.0, 1 - busy_ranks / (out.step.value * static_cast<double>(plan_.ranks.size())));
    return out;
  }

  // With the exchanges of each pipeline rank in the next step, before its first pass. From the first pass of pipeline rank k on, the chain
  // of a step goes over the busiest of the pipeline ranks behind it back to k, whose own exchange and optimizer then come before its next
  // first pass:
  //   T >= max over i >= k of (m (f + b)_i - fill_i)  +  sum over j >= k of fill_j  +  once_k   for every k.
  double delayed_passes() const {
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

  // Of a rank of one part of the devices; kWhole: as blocks are priced.
  std::vector<std::pair<std::string, double>> memory(int pipeline_rank, int part) const {
    const int devices = devices_[static_cast<std::size_t>(pipeline_rank)];
    const std::vector<StageDevices::Part>& parts = cost_model_.parts_of(devices).parts;
    if (parts.size() == 1) part = kWhole;
    const bool tied_elsewhere = !holds_first_block(pipeline_rank);
    BlockLoad sum;
    std::vector<plan::ChunkBytes> saved;
    const double samples =
        part == kWhole ? cost_model_.samples_per_rank(devices, plan_.stages[static_cast<std::size_t>(pipeline_rank)].width(), samples_)
                       : static_cast<double>(parts[static_cast<std::size_t>(part)].samples) / parts[static_cast<std::size_t>(part)].ranks;
    double buffers = 0;
    for (int chunk = 0; chunk < pipeline_.chunks; ++chunk) {
      const int stage = stage_at(plan_.schedule, pipeline_rank, chunk, pipeline_.size);
      double bytes = 0;
      for_blocks(stage, part, [&](int, const BlockLoad& load, const plan::Strategy&, const plan::Strategy*) {
        bytes += load.saved;
        add(sum, load, tied_elsewhere);
      });
      saved.push_back({static_cast<std::int64_t>(bytes), static_cast<std::int64_t>(bytes)});
      buffers = std::max(buffers, samples * boundary_buffers(cost_model_, plan_, stage));
    }
    const auto activations = static_cast<double>(most_bytes(order_of(plan_, pipeline_rank), saved));
    return {{"process", cost_model_.process_bytes(part == kWhole ? devices : parts[static_cast<std::size_t>(part)].group)},
            {"weights", sum.weights},
            {"gradients", sum.gradients},
            {"optimizer state", sum.optimizer_state},
            {"tied parameters", sum.tied_bytes},
            {"activations", activations},
            {"workspace", sum.workspace},
            {"communication buffers", buffers}};
  }

  // The pipeline rank and the part of the devices on which a rank is.
  std::pair<int, int> seat_of(int rank) const {
    for (int pipeline_rank = 0; pipeline_rank < pipeline_.size; ++pipeline_rank) {
      const std::vector<int>& ranks = plan_.stages[static_cast<std::size_t>(pipeline_rank)].ranks;
      const auto found = std::find(ranks.begin(), ranks.end(), rank);
      if (found == ranks.end()) continue;
      int out = kWhole;
      for_parts(pipeline_rank, [&](int part, std::size_t last) {
        if (out == kWhole && static_cast<std::size_t>(found - ranks.begin()) < last) out = part;
      });
      return {pipeline_rank, out};
    }
    throw Error(ErrorCode::internal, text("rank ", rank, " is in no stage"));
  }

  int pipeline_rank_of(int stage) const {
    for (int pipeline_rank = 0; pipeline_rank < pipeline_.size; ++pipeline_rank)
      for (int chunk = 0; chunk < pipeline_.chunks; ++chunk)
        if (stage_at(plan_.schedule, pipeline_rank, chunk, pipeline_.size) == stage) return pipeline_rank;
    return stage % pipeline_.size;
  }

 private:
  // visit(part, index behind its last rank in the stage)
  template <typename Visit>
  void for_parts(int pipeline_rank, const Visit& visit) const {
    const std::vector<StageDevices::Part>& parts = cost_model_.parts_of(devices_[static_cast<std::size_t>(pipeline_rank)]).parts;
    const auto width = static_cast<std::size_t>(plan_.stages[static_cast<std::size_t>(pipeline_rank)].width());
    if (parts.size() == 1) return visit(0, width);
    std::size_t last = 0;
    for (std::size_t part = 0; part < parts.size(); ++part)
      visit(static_cast<int>(part), last += static_cast<std::size_t>(parts[part].ranks));
  }

  // visit(block, load, strategy, strategy of the block before in the stage or nullptr)
  template <typename Visit>
  void for_blocks(int stage, int part, const Visit& visit) const {
    const plan::Stage& of = plan_.stages[static_cast<std::size_t>(stage)];
    const int devices = devices_[static_cast<std::size_t>(stage)];
    const plan::Strategy* before = nullptr;
    for (const plan::StrategyRun& run : of.runs)
      for (int b = run.first; b < run.last; ++b) {
        const int repeat = cost_model_.repeat_of()[static_cast<std::size_t>(b)];
        if (part != kWhole)
          visit(b, cost_model_.priced_on(repeat, devices, static_cast<std::size_t>(part), run.strategy, samples_), run.strategy, before);
        else
          visit(b, cost_model_.block(repeat, devices, run.strategy, samples_), run.strategy, before);
        before = &run.strategy;
      }
  }

  PipelineRankLoad load_of(int pipeline_rank) const {
    PipelineRankLoad out;
    for (int chunk = 0; chunk < pipeline_.chunks; ++chunk)
      add_stage(stage_at(plan_.schedule, pipeline_rank, chunk, pipeline_.size), pipeline_rank, out);
    // With fewer micro-batches as if backward passes were whole and stages not interleaved.
    const bool enough = plan_.micro_batches >= least_micro_batches(plan_.schedule, pipeline_.size);
    const WarmUp warm_up = warm_up_of(enough ? plan_.schedule : plan::Schedule::one_f_one_b, pipeline_.chunks,
                                      cost_model_.weight_pass_bubble(devices_[static_cast<std::size_t>(pipeline_rank)]));
    out.warm_up = warm_up.forward * out.forward + warm_up.backward * (out.backward + out.messages);
    out.once = out.sum.exchange + out.sum.optimizer;
    return out;
  }

  void add_stage(int index, int pipeline_rank, PipelineRankLoad& out) const {
    const plan::Stage& stage = plan_.stages[static_cast<std::size_t>(index)];
    const int devices = devices_[static_cast<std::size_t>(index)];
    const bool tied_elsewhere = !holds_first_block(pipeline_rank);
    for_blocks(index, kWhole, [&](int block, const BlockLoad& load, const plan::Strategy& strategy, const plan::Strategy* before) {
      add(out.sum, load, tied_elsewhere);
      out.forward += load.forward;
      out.backward += load.backward();
      if (before == nullptr) return;
      const double reshard =
          cost_model_.reshard(cost_model_.repeat_of()[static_cast<std::size_t>(block)], devices, *before, strategy, samples_);
      out.reshard += 2 * reshard;
      out.forward += reshard;
      out.backward += reshard;
    });
    out.forward += cost_model_.micro_batch_host(devices);
    out.sum.host += cost_model_.micro_batch_host(devices);
    if (index + 1 == static_cast<int>(plan_.stages.size())) return;
    const plan::Stage& next = plan_.stages[static_cast<std::size_t>(index) + 1];
    if (next.ranks == stage.ranks) return;
    out.messages +=
        cost_model_.messages(cost_model_.input_bytes(cost_model_.repeat_of()[static_cast<std::size_t>(next.first_block())], samples_),
                             devices, stage.width(), devices_[static_cast<std::size_t>(index) + 1], next.width());
  }

  // The first block owns what others tie.
  bool holds_first_block(int pipeline_rank) const {
    for (int chunk = 0; chunk < pipeline_.chunks; ++chunk)
      if (stage_at(plan_.schedule, pipeline_rank, chunk, pipeline_.size) == 0) return true;
    return false;
  }

  static void add(BlockLoad& sum, const BlockLoad& load, bool tied_elsewhere) {
    sum.exchange += load.exchange + (tied_elsewhere ? load.tied_exchange : 0);
    sum.optimizer += load.optimizer;
    sum.weights += load.weights;
    sum.gradients += load.gradients;
    sum.optimizer_state += load.optimizer_state;
    sum.tied_bytes += tied_elsewhere ? load.tied_bytes : 0;
    sum.workspace = std::max(sum.workspace, load.workspace);
    sum.products += load.products;
    sum.attention += load.attention;
    sum.elementwise += load.elementwise;
    sum.again += load.again;
    sum.tensor_exchange += load.tensor_exchange;
    sum.context_exchange += load.context_exchange;
    sum.expert_exchange += load.expert_exchange;
    sum.parameter_exchange += load.parameter_exchange;
    sum.host += load.host;
  }

  const plan::Plan& plan_;
  CostModel& cost_model_;
  const plan::Pipeline pipeline_;
  const std::int64_t samples_;
  std::vector<int> devices_;  // by stage
  std::vector<PipelineRankLoad> rank_loads_;
};

}  // namespace

double boundary_buffers(const CostModel& cost_model, const plan::Plan& plan, int stage) {
  const plan::Stage& of = plan.stages[static_cast<std::size_t>(stage)];
  const auto whole = [&](int block) { return cost_model.input_bytes(cost_model.repeat_of()[static_cast<std::size_t>(block)], 1); };
  double bytes = 0;
  if (stage > 0) bytes = whole(of.first_block());
  if (stage + 1 < static_cast<int>(plan.stages.size())) bytes = std::max(bytes, whole(of.last_block()));
  return 4 * bytes;
}

plan::Prediction predict(const plan::Plan& plan, CostModel& cost_model) { return LoadedPrediction(plan, cost_model).predict(); }

Seconds step_of(const plan::Plan& plan, CostModel& cost_model) { return LoadedPrediction(plan, cost_model).step(); }

std::vector<std::pair<std::string, double>> memory_terms(const plan::Plan& plan, int rank, CostModel& cost_model) {
  const LoadedPrediction prediction(plan, cost_model);
  const auto [pipeline_rank, part] = prediction.seat_of(rank);
  return prediction.memory(pipeline_rank, part);
}

double bytes_held(const plan::Plan& plan, int stage, CostModel& cost_model) {
  const LoadedPrediction prediction(plan, cost_model);
  double out = 0;
  for (const auto& [name, bytes] : prediction.memory(prediction.pipeline_rank_of(stage), kWhole)) out += bytes;
  return out;
}

}  // namespace tessera::cost
