// Plan files and schedule files, up to the programs that they become.
#include <algorithm>
#include <memory>

#include "base/config.hpp"
#include "fuzz/checks.hpp"
#include "interop/flags.hpp"
#include "model/forms.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "plan/schedule/schedule.hpp"
#include "program/program.hpp"
#include "program/timeline.hpp"
#include "search/search.hpp"
#include "sim/sim.hpp"

namespace tessera::fuzz {
namespace {

// A job, devices, and the plan that was found for both.
struct Planned {
  model::JobSpec job;
  cluster::ClusterSpec cluster;
  plan::Plan plan;
};

Planned planned(const std::string& parallel, const std::string& cluster, const std::string& precision = "fp32") {
  Planned out;
  out.job = model::read_job(
      ConfigNode::parse("name: fuzz\nmodel: {arch: llama, hidden: 64, layers: 6, heads: 4, kv_heads: 4, ffn: 128, seq: 32, vocab: 256}\n"
                        "data: {source: synthetic}\ntrain: {global_batch: 8, precision: " +
                            precision + ", optimizer: {kind: adamw, clip: 0}}\nparallel: " + parallel + "\n",
                        "train.yaml"));
  out.cluster = cluster::read_cluster(ConfigNode::parse("name: devices\ngroups:\n  - " + cluster + "\n", "cluster.yaml"));
  out.plan = search::search(out.job, out.cluster, {}).best;
  return out;
}

// Two kinds of device in one stage, the faster one with more of the batch.
Planned side_by_side() {
  Planned out = planned("{dp: 2, pp: 1, tp: 1, micro_batches: 1}",
                        "{name: new, device: h100-sxm, devices_per_node: 2, inside: nvlink4, network: rdma-100g}\n"
                        "  - {name: old, device: a100-80, devices_per_node: 2, inside: nvlink3, network: rdma-100g}\nbetween: rdma-100g",
                        "bf16");
  for (int device = 0; device < 2; ++device) out.plan.ranks.push_back({1, 0, device});
  plan::Stage& stage = out.plan.stages.front();
  stage.ranks = {0, 1, 2, 3};
  for (plan::StrategyRun& run : stage.runs) run.strategy.dp = 4;
  stage.shares = {{2, 6}, {2, 2}};
  out.plan.predicted.reset();
  return out;
}

// Four stages on two ranks.
Planned folded(plan::Schedule schedule) {
  Planned out = planned("{dp: 1, pp: 4, tp: 1, micro_batches: 4, schedule: 1f1b}",
                        "{name: gpu, device: a100-80, devices_per_node: 4, inside: nvlink3}");
  out.plan.schedule = schedule;
  out.plan.ranks.resize(2);
  for (int s = 0; s < 4; ++s) out.plan.stages[s].ranks = {schedule == plan::Schedule::interleaved ? s % 2 : std::min(s, 3 - s)};
  out.plan.predicted.reset();
  return out;
}

plan::ScheduleFile schedule_of(const plan::Plan& plan, plan::Schedule order) {
  const plan::Pipeline pipeline = plan::pipeline_of(plan);
  plan::ScheduleFile file{plan.schedule, static_cast<int>(plan.micro_batches), {}};
  for (int place = 0; place < pipeline.size; ++place)
    file.orders.push_back(plan::order_of(order, place, pipeline.size, file.micro_batches, pipeline.chunks));
  return file;
}

// Prices from a profile know some strategies only.
bool can_be_priced(const plan::Plan& plan, const Planned& basis) {
  if (plan.precision != model::Precision::f32 && !basis.cluster.groups.front().device.is_cpu()) return true;
  return model::computed_by_nn(plan.precision);
}

// A plan that was checked is run, but for the tensors. Whether the orders of different ranks fit together only the programs show.
void run(const plan::Plan& plan, const Planned& basis) {
  if (!plan.order.empty()) {
    program::check(program::compile(plan, basis.job.model));
  } else {
    must_pass("a plan that was checked cannot be run", [&] {
      program::check(program::compile(plan, basis.job.model));
      if (plan.stages.size() > plan.ranks.size() || !can_be_priced(plan, basis)) return;
      const Seconds step = sim::simulate(plan, basis.job.model, basis.job.train, basis.cluster, {}).result.step;
      if (!(step.value > 0)) throw Defect(text("a step of ", step.value, " s"));
    });
  }
  for (const auto write : {interop::megatron_flags, interop::torchtitan_toml}) {
    try {
      write(plan, basis.job.model, basis.job.train);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_config) throw Defect(text("no words for other trainers: ", error.what()));
    }
  }
}

void read_plan(const std::vector<Planned>& known, const std::string& input) {
  plan::Plan plan = plan::read_plan(ConfigNode::parse(input, "plan.json"));
  const std::string json = plan::to_json(plan);
  must_pass("what to_json wrote is refused",
            [&] { must_be_equal(json, plan::to_json(plan::read_plan(ConfigNode::parse(json, "again.json"))), "the plan"); });

  const auto same = [&](const Planned& one) { return one.plan.cluster_fingerprint == plan.cluster_fingerprint; };
  const auto found = std::find_if(known.begin(), known.end(), same);
  const Planned& basis = found == known.end() ? known.front() : *found;
  // Past the fingerprints, which would refuse almost everything else.
  plan.model_fingerprint = basis.plan.model_fingerprint;
  plan.cluster_fingerprint = basis.plan.cluster_fingerprint;
  plan::check(plan, basis.job, basis.cluster);
  run(plan, basis);
}

void read_schedule(const std::vector<Planned>& known, const std::string& input) {
  const plan::ScheduleFile file = plan::read_schedule(ConfigNode::parse(input, "schedule.yaml"));
  const std::string yaml = plan::to_yaml(file);
  must_pass("what to_yaml wrote is refused", [&] {
    const plan::ScheduleFile again = plan::read_schedule(ConfigNode::parse(yaml, "again.yaml"));
    must_be_equal(yaml, plan::to_yaml(again), "the schedule");
    if (again.orders != file.orders) throw Defect("the order is read back as another:\n" + yaml);
  });
  for (const auto& order : file.orders)
    if (order.empty()) throw Defect("an order that holds no micro-batch");
  for (Planned basis : known) {
    if (basis.plan.schedule != file.placement || static_cast<int>(file.orders.size()) != plan::pipeline_of(basis.plan).size) continue;
    plan::use_schedule(file, basis.plan);
    plan::check(basis.plan, basis.job, basis.cluster);
    run(basis.plan, basis);
  }
}

}  // namespace

Target plan_target() {
  const auto known = std::make_shared<std::vector<Planned>>(std::vector<Planned>{
      planned("{dp: 2, pp: 2, tp: 2, micro_batches: 2, schedule: zb-h1}",
              "{name: gpu, device: a100-80, devices_per_node: 8, inside: nvlink3}"),
      planned("{dp: 2, pp: 3, tp: 1, zero: 1, micro_batches: 4, schedule: gpipe}",
              "{name: gpu, device: a100-80, nodes: 3, devices_per_node: 2, inside: nvlink3, network: rdma-100g}"),
      planned("{dp: 2, pp: 1, tp: 2, recompute: full}", "{name: cpu, device: 'cpu:zen4', cores: 4, memory: 64 GiB, inside: shm}"),
      planned("{dp: 2, pp: 2, tp: 1, zero: 1, micro_batches: 2, delayed_exchange: true}",
              "{name: cpu, device: 'cpu:zen4', cores: 4, memory: 64 GiB, inside: shm}"),
      folded(plan::Schedule::zb_v), folded(plan::Schedule::interleaved), side_by_side()});
  Target target;
  for (const Planned& one : *known) target.seeds.push_back(plan::to_json(one.plan));
  for (Planned one : {known->at(0), known->at(4)}) {
    plan::use_schedule(
        schedule_of(one.plan, one.plan.schedule == plan::Schedule::zb_v ? plan::Schedule::dualpipe_v : plan::Schedule::zb_h1), one.plan);
    target.seeds.push_back(plan::to_json(one.plan));
  }
  target.read = [known](const std::string& input) { read_plan(*known, input); };
  return target;
}

Target schedule_target() {
  auto known = std::make_shared<std::vector<Planned>>(
      std::vector<Planned>{planned("{dp: 1, pp: 2, tp: 1, micro_batches: 4, schedule: 1f1b}",
                                   "{name: gpu, device: a100-80, devices_per_node: 2, inside: nvlink3}"),
                           folded(plan::Schedule::zb_v), folded(plan::Schedule::interleaved)});
  Target target;
  for (const plan::Schedule order : {plan::Schedule::gpipe, plan::Schedule::one_f_one_b, plan::Schedule::zb_h2})
    target.seeds.push_back(plan::to_yaml(schedule_of(known->at(0).plan, order)));
  for (const plan::Schedule order : {plan::Schedule::zb_v, plan::Schedule::dualpipe_v})
    target.seeds.push_back(plan::to_yaml(schedule_of(known->at(1).plan, order)));
  target.seeds.push_back(plan::to_yaml(schedule_of(known->at(2).plan, plan::Schedule::interleaved)));
  target.read = [known](const std::string& input) { read_schedule(*known, input); };
  return target;
}

Target trace_target() {
  Target target;
  target.short_run = 600;
  target.refusals = {ErrorCode::corrupt};
  const Planned basis = planned("{dp: 1, pp: 2, tp: 2, micro_batches: 2, schedule: 1f1b}",
                                "{name: cpu, device: 'cpu:zen4', cores: 4, memory: 64 GiB, inside: shm}");
  const sim::Simulation simulation = sim::simulate(basis.plan, basis.job.model, basis.job.train, basis.cluster, {});
  target.seeds = {sim::to_chrome_trace(simulation.result, simulation.programs)};
  target.read = [](const std::string& input) {
    std::vector<program::StepFigures> all;
    for (const auto& [step, ranks] : program::read_trace(input, "trace.json")) all.push_back(program::figures_of(ranks));
    if (all.empty()) return;
    const program::StepFigures median = program::median_of(all);
    for (const program::StepFigures& figures : all) {
      if (!(figures.length >= Seconds(0))) throw Defect("a step of negative length");
      for (const auto& [rank, time] : figures.ranks)
        if (!(time.exposed >= Seconds(0) && time.idle >= Seconds(0))) throw Defect(text("rank ", rank, " waits for less than nothing"));
      for (const auto& [key, time] : figures.instructions)
        if (!median.instructions.contains(key)) throw Defect("the median lacks an instruction");
    }
  };
  return target;
}

}  // namespace tessera::fuzz
