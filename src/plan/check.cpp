#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "plan/divisors.hpp"
#include "plan/plan.hpp"
#include "plan/schedule.hpp"

namespace tessera::plan {
namespace {

// Workers that a CPU host may be given beyond its cores, for trying out plans.
constexpr int kMostWorkersPerCore = 32;

[[noreturn]] void refuse(const Where& where, const std::string& message, const std::string& expected, const std::string& hint = {}) {
  throw Error(ErrorCode::invalid_config, "the plan cannot run: " + message, where, expected, hint);
}

void check_fingerprints(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  const std::string again = "make a plan for it with `tessera plan`";
  if (plan.model_fingerprint != model.fingerprint())
    refuse(plan.where, "it was made for another model (" + plan.model_fingerprint + ")", "a plan for model " + model.fingerprint(), again);
  if (plan.cluster_fingerprint != cluster.fingerprint())
    refuse(plan.where, "it was made for other devices (" + plan.cluster_fingerprint + ")", text("a plan for ", cluster.name, " (", cluster.fingerprint(), ")"), again);
}

void check_ranks(const Plan& plan, const cluster::ClusterSpec& cluster) {
  if (plan.ranks.empty()) refuse(plan.where, "it has no ranks", "at least one");
  std::map<std::tuple<int, int, int>, int> used;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    const RankPlace& place = plan.ranks[rank];
    const auto of_rank = [&](const char* what) { return text("rank ", rank, " stands on ", what); };
    if (place.group < 0 || place.group >= static_cast<int>(cluster.groups.size()))
      refuse(place.where, of_rank("group ") + std::to_string(place.group), text("a group below ", cluster.groups.size()));
    const cluster::ResourceGroup& group = cluster.groups[place.group];
    if (place.node < 0 || place.node >= group.nodes) refuse(place.where, of_rank("node ") + std::to_string(place.node), text("a node below ", group.nodes, " of group ", group.name));
    const int devices = group.device.is_cpu() ? std::max(group.devices_per_node, kMostWorkersPerCore * group.device.cores) : group.devices_per_node;
    if (place.device < 0 || place.device >= devices)
      refuse(place.where, of_rank("device ") + std::to_string(place.device), text("a device below ", devices, " of group ", group.name));
    if (place.threads < 1) refuse(place.where, text("rank ", rank, " has ", place.threads, " threads"), "at least 1");
    const auto [first, fresh] = used.try_emplace({place.group, place.node, place.device}, rank);
    if (!fresh) refuse(place.where, text("ranks ", first->second, " and ", rank, " stand on the same device"), "one rank a device");
  }
}

void check_strategy(const Plan& plan, const model::ModelSpec& model, const StrategyRun& run) {
  const Strategy& s = run.strategy;
  if (s.dp < 1 || s.tp < 1) refuse(run.where, text("dp ", s.dp, ", tp ", s.tp), "degrees of at least 1");
  if (s.zero < 0 || s.zero > 1) refuse(run.where, text("zero ", s.zero), "0, or 1: optimizer state sharded over dp");
  for (const char* key : kTensorDimensions)
    if (model.dim(key) % s.tp != 0)
      refuse(run.where, text("tp ", s.tp, " does not divide ", key, " ", model.dim(key)), "a degree that divides heads, kv_heads, ffn and vocab",
             text("nearest: ", nearest_of(tensor_degrees(model), s.tp)));
  if (plan.global_batch % (static_cast<std::int64_t>(s.dp) * plan.micro_batches) != 0) {
    std::vector<std::int64_t> valid;
    for (std::int64_t count : divisors_of(plan.global_batch))
      if (plan.global_batch % (count * s.dp) == 0) valid.push_back(count);
    if (valid.empty()) refuse(run.where, text("dp ", s.dp, " does not divide global_batch ", plan.global_batch), {}, text("nearest: dp ", nearest_of(divisors_of(plan.global_batch), s.dp)));
    refuse(run.where, text("dp ", s.dp, " x micro_batches ", plan.micro_batches, " does not divide global_batch ", plan.global_batch), {},
           text("nearest: micro_batches ", nearest_of(valid, plan.micro_batches)));
  }
}

void check_stages(const Plan& plan, const model::ModelSpec& model) {
  if (plan.stages.empty()) refuse(plan.where, "it has no stages", "at least one");
  const Strategy& common = plan.stages.front().runs.empty() ? Strategy{} : plan.stages.front().runs.front().strategy;
  int next_block = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const Stage& stage = plan.stages[s];
    if (stage.runs.empty()) refuse(stage.where, text("stage ", s, " has no blocks"), "at least one");
    for (const StrategyRun& run : stage.runs) {
      if (run.first != next_block)
        refuse(run.where, text("blocks [", run.first, ", ", run.last, ") of stage ", s, run.first > next_block ? " leave out" : " repeat", " block ", std::min(run.first, next_block)),
               text("first: ", next_block));
      if (run.last <= run.first || run.last > model.block_count())
        refuse(run.where, text("blocks [", run.first, ", ", run.last, ") of stage ", s), text("last: above ", run.first, " and at most ", model.block_count()));
      check_strategy(plan, model, run);
      const Strategy& strategy = run.strategy;
      if (strategy.dp != common.dp || strategy.tp != common.tp)
        refuse(run.where, text("stage ", s, " has dp ", strategy.dp, " x tp ", strategy.tp, ", stage 0 has dp ", common.dp, " x tp ", common.tp), "the same degrees in all stages");
      if (strategy.zero != stage.runs.front().strategy.zero) refuse(run.where, text("stage ", s, " mixes zero ", stage.runs.front().strategy.zero, " and ", strategy.zero), "one zero a stage");
      next_block = run.last;
    }
    const std::int64_t wanted = std::int64_t{common.dp} * common.tp;
    if (static_cast<std::int64_t>(stage.ranks.size()) != wanted)
      refuse(stage.where, text("stage ", s, " has ", stage.ranks.size(), " ranks for dp ", common.dp, " x tp ", common.tp), text(wanted, " ranks"));
    for (int rank : stage.ranks)
      if (rank < 0 || rank >= plan.world_size()) refuse(stage.where, text("stage ", s, " names rank ", rank), text("a rank below ", plan.world_size()));
  }
  const Where& end = plan.stages.back().where;
  if (next_block != model.block_count()) refuse(end, text("blocks ", next_block, " to ", model.block_count() - 1, " are in no stage"), text("stages that end at block ", model.block_count()));
}

}  // namespace

void check(const Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  check_fingerprints(plan, model, cluster);
  if (plan.global_batch < 1 || plan.micro_batches < 1) refuse(plan.where, text("global_batch ", plan.global_batch, ", micro_batches ", plan.micro_batches), "at least 1");
  check_ranks(plan, cluster);
  check_stages(plan, model);
  check_schedule(plan);
}

void check(const Plan& plan, const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  check(plan, job.model, cluster);
  if (plan.global_batch != job.train.global_batch)
    refuse(plan.where, text("it is for a global batch of ", plan.global_batch), text("train.global_batch ", job.train.global_batch), "make a plan for it with `tessera plan`");
  if (plan.precision != job.train.precision)
    refuse(plan.where, text("it computes in ", model::name_of(plan.precision)), text("train.precision ", model::name_of(job.train.precision)),
           "make a plan for it with `tessera plan`");
}

}  // namespace tessera::plan
