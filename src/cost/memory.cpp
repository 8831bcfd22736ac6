#include <algorithm>

#include "base/error.hpp"
#include "cost/cost.hpp"
#include "cost/priced_plan.hpp"
#include "plan/stage_places.hpp"

namespace tessera::cost {
namespace {

constexpr double kCpuUsable = 0.9;
constexpr double kAcceleratorUsable = 0.95;

// Of a token of a step's samples and of its target.
constexpr double kToken = 16;

Bytes whole(double bytes) { return Bytes(static_cast<std::int64_t>(bytes)); }

}  // namespace

PricedPlan::PricedPlan(const plan::Plan& plan, CostModel& cost_model)
    : plan_(plan), cost_model_(cost_model), pipeline_(pipeline_of(plan)), devices_(cost_model.devices_of(plan)) {
  for (const plan::Stage& stage : plan.stages)
    for (const plan::StrategyRun& run : stage.runs)
      strategies_.insert(strategies_.end(), static_cast<std::size_t>(run.last - run.first), &run.strategy);
}

bool PricedPlan::holds_first_block(int pipeline_rank) const {
  for (int chunk = 0; chunk < pipeline_.chunks; ++chunk)
    if (stage_at(plan_.schedule, pipeline_rank, chunk, pipeline_.size) == 0) return true;
  return false;
}

int PricedPlan::part_of(int stage, int rank) const {
  const std::vector<int>& ranks = plan_.stages[stage].ranks;
  const auto index = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  int out = -1;
  for_parts(stage, [&](int part, int last) {
    if (out < 0 && index < last) out = part;
  });
  return out;
}

double CostModel::buffers(int devices, const StageBuffers& of, int part) const {
  if (!plays_exchanges(devices)) {
    // Two receive buffers in each direction at the stage's ends: bytes for each sample that a rank has of a micro-batch.
    double bytes = 0;
    if (of.receives >= 0) bytes = input_bytes(of.receives, 1);
    if (of.sends >= 0) bytes = std::max(bytes, input_bytes(of.sends, 1));
    return 4 * bytes * samples_per_rank(devices, of.width, of.samples, part);
  }
  // Two receive buffers in each direction and what is being sent, a bucket, and the tokens of the step.
  const double transfers = 3 * of.output * ((of.receives >= 0 ? 1 : 0) + (of.sends >= 0 ? 1 : 0));
  const double reductions = of.strategy.dp > 1 ? std::min(static_cast<double>(of.bucket_size.value), of.gradients) / of.strategy.dp : 0;
  const std::int64_t samples = of.micro_batches * micro_batch(devices, std::max(0, part), of.strategy, of.samples);
  return transfers + reductions + kToken * static_cast<double>(samples * model_.dim("seq"));
}

RankBytes PricedPlan::bytes(int pipeline_rank, int part) const {
  const bool tied_elsewhere = !holds_first_block(pipeline_rank);
  RankBytes out;
  BlockLoad sum;
  double held_in_buffers = 0;
  for (int chunk = 0; chunk < pipeline_.chunks; ++chunk) {
    const int stage = stage_at(plan_.schedule, pipeline_rank, chunk, pipeline_.size);
    const plan::Stage& of = plan_.stages[stage];
    double saved = 0;
    double saved_for_weight = 0;
    double gradients = 0;
    double output = 0;
    for (int b = of.first_block(); b < of.last_block(); ++b) {
      const BlockLoad& block = load(stage, b, part);
      saved += block.saved;
      saved_for_weight += block.saved_for_weight;
      gradients += block.gradients + (tied_elsewhere ? block.tied_gradients : 0);
      output = std::max(output, block.output);
      sum.weights += block.weights;
      sum.gradients += block.gradients;
      sum.optimizer_state += block.optimizer_state;
      sum.tied_bytes += tied_elsewhere ? block.tied_bytes : 0;
      sum.workspace = std::max(sum.workspace, block.workspace);
    }
    out.activations.push_back({whole(saved).value, whole(saved_for_weight).value});
    const StageBuffers ends{.width = of.width(),
                            .samples = plan_.samples(),
                            .micro_batches = plan_.micro_batches,
                            .receives = stage == 0 ? -1 : repeat(of.first_block()),
                            .sends = stage + 1 == static_cast<int>(plan_.stages.size()) ? -1 : repeat(of.last_block()),
                            .strategy = of.runs.front().strategy,
                            .gradients = gradients,
                            .output = output,
                            .bucket_size = plan_.bucket_size};
    held_in_buffers = std::max(held_in_buffers, cost_model_.buffers(devices(stage), ends, part));
  }
  out.process = whole(cost_model_.process_bytes(devices(pipeline_rank), part));
  out.weights = whole(sum.weights);
  out.gradients = whole(sum.gradients * (1 + plan_.staleness));
  out.optimizer_state = whole(sum.optimizer_state);
  out.tied = whole(sum.tied_bytes);
  out.workspace = whole(sum.workspace);
  out.buffers = whole(held_in_buffers);
  return out;
}

std::vector<std::pair<std::string, Bytes>> PricedPlan::terms(int pipeline_rank, int part) const {
  const RankBytes held = bytes(pipeline_rank, part);
  const bool closed = pipeline_.chunks == 1 && plan_.order.empty() && !plan::splits_backward(plan_.schedule);
  const Bytes activations(closed ? plan::in_flight(plan_.schedule, pipeline_rank, pipeline_.size, plan_.micro_batches) *
                                       held.activations.front().saved
                                 : most_bytes(order_of(plan_, pipeline_rank), held.activations));
  return {{"process", held.process},      {"weights", held.weights},
          {"gradients", held.gradients},  {"optimizer state", held.optimizer_state},
          {"tied parameters", held.tied}, {"activations", activations},
          {"workspace", held.workspace},  {"communication buffers", held.buffers}};
}

std::vector<Bytes> PricedPlan::memory() const {
  std::vector<Bytes> out(plan_.ranks.size());
  for (int pipeline_rank = 0; pipeline_rank < pipeline_.size; ++pipeline_rank) {
    const std::vector<int>& ranks = plan_.stages[pipeline_rank].ranks;
    int rank = 0;
    for_parts(pipeline_rank, [&](int part, int last) {
      Bytes sum;
      for (const auto& [name, bytes] : terms(pipeline_rank, part)) sum += bytes;
      for (; rank < last; ++rank) out[ranks[rank]] = sum;
    });
  }
  return out;
}

std::vector<Bytes> memory_of(const plan::Plan& plan, CostModel& cost_model) { return PricedPlan(plan, cost_model).memory(); }

std::vector<std::pair<std::string, Bytes>> memory_terms(const plan::Plan& plan, int rank, CostModel& cost_model) {
  const PricedPlan priced(plan, cost_model);
  for (int pipeline_rank = 0; pipeline_rank < priced.pipeline().size; ++pipeline_rank) {
    const std::vector<int>& ranks = plan.stages[pipeline_rank].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) continue;
    std::vector<std::pair<std::string, Bytes>> out = priced.terms(pipeline_rank, priced.part_of(pipeline_rank, rank));
    std::erase_if(out, [](const auto& term) { return term.second <= Bytes(0); });
    return out;
  }
  throw Error(ErrorCode::internal, text("rank ", rank, " is in no stage"));
}

Bytes memory_limit(const cluster::Device& device) {
  return Bytes(static_cast<std::int64_t>(static_cast<double>(device.memory.value) * (device.is_cpu() ? kCpuUsable : kAcceleratorUsable)));
}

std::vector<Bytes> memory_limits(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::vector<Bytes> out;
  out.reserve(plan.ranks.size());
  for (const plan::Worker& worker : workers_of(plan, cluster))
    out.push_back(Bytes(memory_limit(cluster.groups[worker.group].device).value / worker.neighbours));
  return out;
}

FullestRank fullest_rank(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster) {
  const std::vector<Bytes> limits = memory_limits(plan, cluster);
  FullestRank out;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const double share = memory[rank] / limits[rank];
    if (share > out.share) out = {rank, share};
  }
  return out;
}

void check_fits(const plan::Plan& plan, const std::vector<Bytes>& memory, const cluster::ClusterSpec& cluster) {
  const auto [worst, share] = fullest_rank(plan, memory, cluster);
  if (share <= 1) return;
  throw Error(ErrorCode::resource_exhausted,
              text("the plan does not fit: rank ", worst, " would hold ", to_text(memory[worst]), " at its peak, and may use ",
                   to_text(memory_limits(plan, cluster)[worst])),
              {.file = plan.where.file, .rank = worst, .block = {}}, {},
              "more recomputation, a higher zero, more stages or smaller micro-batches need less; `tessera plan` finds a plan that fits");
}

std::vector<Bytes> memory_of(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                             const cluster::ClusterSpec& cluster, const profile::Profile& profile) {
  CostModel cost_model(model, train, cluster, profile);
  return memory_of(plan, cost_model);
}

}  // namespace tessera::cost
