#include <algorithm>

#include "cost/cost_model.hpp"
#include "cost/prices.hpp"
#include "plan/schedule/schedule.hpp"

namespace tessera::cost {
namespace {

// A worker with its libraries loaded, before it holds a tensor.
constexpr std::int64_t kCpuBaseline = std::int64_t{320} << 20;
constexpr std::int64_t kAcceleratorBaseline = std::int64_t{900} << 20;
// What a worker that computes holds beyond the tensors: packed operands of its matrix products, stacks, the token cache's
// pages, the run's files. 26 to 32 MiB over the plans of one worker and of data-parallel ones.
constexpr std::int64_t kWorking = std::int64_t{28} << 20;
constexpr double kCpuUsable = 0.9;
constexpr double kAcceleratorUsable = 0.95;

struct StateBytes {
  std::int64_t weight = 0;     // for every parameter that the rank holds
  std::int64_t gradient = 0;   // likewise
  std::int64_t optimizer = 0;  // for those that it steps
};

// f32 computes on its master weights; bf16 has a copy beside them. Gradients are f32 in both.
StateBytes state_bytes(model::Precision precision, const model::OptimizerSpec& optimizer) {
  const bool adamw = optimizer.kind == model::OptimizerKind::adamw;
  const std::int64_t moments = adamw ? 8 : optimizer.momentum != 0 ? 4 : 0;
  return precision == model::Precision::f32 ? StateBytes{4, 4, moments} : StateBytes{2, 4, 4 + moments};
}

}  // namespace

StageBytes stage_bytes(const StageShape& shape, const std::vector<BlockSegment>& segments, Prices& prices) {
  const plan::Strategy& strategy = shape.strategy;
  const std::int64_t parameters = prices.parameters(shape.first, shape.last, strategy.tp);
  const StateBytes state = state_bytes(shape.precision, prices.train().optimizer);
  const std::int64_t shards = strategy.zero > 0 ? strategy.dp : 1;
  std::int64_t saved = 0;
  std::int64_t workspace = 0;
  std::int64_t boundary = 0;
  for (const BlockSegment& segment : segments) {
    const BlockPrice& price =
        prices.block(segment.repeat, {shape.micro_batch, strategy.tp, shape.precision, segment.recompute}, shape.place);
    saved += segment.count * price.cost.saved.value;
    const std::int64_t again = price.saved_whole.value - price.cost.saved.value;
    const std::int64_t scratch = strategy.tp > 1 ? price.cost.all_reduce_size.value : 0;
    workspace = std::max({workspace, price.cost.forward_workspace.value + price.cost.output.value + scratch,
                          price.cost.backward_workspace.value + 2 * price.cost.output.value + std::max<std::int64_t>(0, again) + scratch});
    boundary = std::max(boundary, price.cost.output.value);
  }
  // Two receive buffers in each direction, and what is being sent.
  const int neighbours = (shape.stage > 0 ? 1 : 0) + (shape.stage + 1 < shape.stage_count ? 1 : 0);
  const std::int64_t transfers = neighbours * 3 * boundary;
  const std::int64_t reductions = strategy.dp > 1 ? std::min(shape.bucket.value, 4 * parameters) / strategy.dp : 0;
  const std::int64_t batches = shape.micro_batches * shape.micro_batch * prices.model().dim("seq") * 16;
  const cluster::Device& device = prices.cluster().groups[shape.place.group].device;
  const std::int64_t measured = prices.profile().process_baseline.value;
  const std::int64_t baseline = !device.is_cpu() ? kAcceleratorBaseline : measured > 0 ? measured + kWorking : kCpuBaseline;
  StageBytes bytes{0,
                   saved,
                   workspace,
                   baseline,
                   parameters * state.weight,
                   parameters * state.gradient,
                   parameters * state.optimizer / shards,
                   transfers + reductions + batches};
  bytes.fixed = bytes.process + bytes.weights + bytes.gradients + bytes.optimizer + bytes.buffers;
  return bytes;
}

StageShape shape_of(const plan::Plan& plan, int index, const Place& place, std::int64_t micro_batch) {
  const plan::Stage& stage = plan.stages[index];
  const plan::Strategy& strategy = stage.runs.front().strategy;
  return {stage.first_block(),
          stage.last_block(),
          index,
          static_cast<int>(plan.stages.size()),
          strategy,
          micro_batch,
          plan.micro_batches,
          plan.schedule,
          plan.precision,
          plan.bucket,
          place};
}

Bytes memory_limit(const cluster::Device& device) {
  return Bytes(static_cast<std::int64_t>(static_cast<double>(device.memory.value) * (device.is_cpu() ? kCpuUsable : kAcceleratorUsable)));
}

std::vector<Bytes> memory_limits(const plan::Plan& plan, const cluster::ClusterSpec& cluster) {
  std::vector<Bytes> out;
  out.reserve(plan.ranks.size());
  for (const Place& place : places_of(plan, cluster))
    out.push_back(Bytes(memory_limit(cluster.groups[place.group].device).value / place.neighbours));
  return out;
}

std::vector<Bytes> memory_of(const plan::Plan& plan, const model::ModelSpec& model, const model::TrainSpec& train,
                             const cluster::ClusterSpec& cluster, const profile::Profile& profile) {
  Prices prices(model, train, cluster, profile);
  return memory_of(plan, prices);
}

std::vector<Bytes> memory_of(const plan::Plan& plan, Prices& prices) {
  if (CostModel::supports(prices.cluster(), plan.precision)) {
    CostModel cost_model(prices.model(), prices.cluster(), plan.precision);
    return predict(plan, cost_model).memory;
  }
  const std::vector<Place> places = places_of(plan, prices.cluster());
  std::vector<Bytes> out(plan.ranks.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Stage& stage = plan.stages[s];
    const std::vector<BlockSegment> segments = prices.segments(stage);
    for (int i = 0; i < stage.width(); ++i) {
      const int rank = stage.ranks[i];
      const StageShape shape = shape_of(plan, static_cast<int>(s), places[rank], plan.micro_batch_at(stage, i));
      const StageBytes bytes = stage_bytes(shape, segments, prices);
      out[rank] = Bytes(bytes.fixed + plan::in_flight(shape.schedule, shape.stage, shape.stage_count, shape.micro_batches) * bytes.saved +
                        bytes.workspace);
    }
  }
  return out;
}

std::vector<std::pair<std::string, Bytes>> memory_parts(const plan::Plan& plan, int rank, const model::ModelSpec& model,
                                                        const model::TrainSpec& train, const cluster::ClusterSpec& cluster,
                                                        const profile::Profile& profile) {
  std::vector<std::pair<std::string, Bytes>> out;
  const auto add = [&](const std::string& name, std::int64_t bytes) {
    if (bytes > 0) out.emplace_back(name, Bytes(bytes));
  };
  if (CostModel::supports(cluster, plan.precision)) {
    CostModel cost_model(model, cluster, plan.precision);
    for (const auto& [name, bytes] : memory_terms(plan, rank, cost_model)) add(name, static_cast<std::int64_t>(bytes));
    return out;
  }
  Prices prices(model, train, cluster, profile);
  const Place place = places_of(plan, cluster)[rank];
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const plan::Stage& stage = plan.stages[s];
    const auto held = std::find(stage.ranks.begin(), stage.ranks.end(), rank);
    if (held == stage.ranks.end()) continue;
    const StageShape shape =
        shape_of(plan, static_cast<int>(s), place, plan.micro_batch_at(stage, static_cast<int>(held - stage.ranks.begin())));
    const StageBytes bytes = stage_bytes(shape, prices.segments(stage), prices);
    out.clear();
    add("process", bytes.process);
    add("weights", bytes.weights);
    add("gradients", bytes.gradients);
    add("optimizer state", bytes.optimizer);
    add("activations", plan::in_flight(shape.schedule, shape.stage, shape.stage_count, shape.micro_batches) * bytes.saved);
    add("workspace", bytes.workspace);
    add("communication buffers", bytes.buffers);
  }
  return out;
}

}  // namespace tessera::cost
