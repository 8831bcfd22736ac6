// tessera_bench_gain: the simulated step of the plan that the search chooses, against the best plans that people would write by
// hand for the same model and cluster. Prints one JSON object a line.
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/config.hpp"
#include "base/error.hpp"
#include "cost/cost.hpp"
#include "cost/cost_model.hpp"
#include "model/job.hpp"
#include "plan/tensor_cut.hpp"
#include "search/rank.hpp"
#include "search/search.hpp"
#include "search/stage_fronts.hpp"
#include "search/templates.hpp"

namespace {

using namespace tessera;
using Json = nlohmann::ordered_json;

struct Pair {
  const char* name;
  const char* model;
  int batch;
  const char* precision;
  const char* cluster;  // groups in flow style
  const char* between = "rdma-100g";
};

constexpr Pair kPairs[] = {
    {"Llama-2-7B, 8 A100-40", "llama-2-7b", 64, "bf16",
     "[{name: a100, device: a100-40, nodes: 1, devices_per_node: 8, inside: nvlink3, network: rdma-100g}]"},
    {"Llama-3-8B, 16 H100", "llama-3-8b", 64, "bf16",
     "[{name: h100, device: h100-sxm, nodes: 2, devices_per_node: 8, inside: nvlink4, network: rdma-400g, adapters: 8}]"},
    {"Llama-2-13B, 16 A100-40", "llama-2-13b", 128, "bf16",
     "[{name: a100, device: a100-40, nodes: 2, devices_per_node: 8, inside: nvlink3, network: rdma-100g}]"},
    {"BERT-large, 32 V100-32", "bert-large", 1024, "fp16",
     "[{name: v100, device: v100-32, nodes: 4, devices_per_node: 8, inside: nvlink2, network: tcp-25g}]"},
    {"Llama-2-70B, 64 A100-80", "llama-2-70b", 512, "bf16",
     "[{name: a100, device: a100-80, nodes: 8, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 4}]"},
    {"Mixtral-8x7B, 64 H100", "mixtral-8x7b", 512, "bf16",
     "[{name: h100, device: h100-sxm, nodes: 8, devices_per_node: 8, inside: nvlink4, network: rdma-400g, adapters: 8}]"},
    {"T5-11B, 64 A100-40", "t5-11b", 512, "bf16",
     "[{name: a100, device: a100-40, nodes: 8, devices_per_node: 8, inside: nvlink3, network: rdma-100g}]"},
    {"Llama-3-70B, 128 H100", "llama-3-70b", 512, "bf16",
     "[{name: h100, device: h100-sxm, nodes: 16, devices_per_node: 8, inside: nvlink4, network: rdma-400g, adapters: 8}]"},
    {"Megatron-22B, 128 Ascend 910B", "megatron-22b", 512, "bf16",
     "[{name: ascend, device: ascend910b, nodes: 16, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8}]"},
    {"GPT-3-175B, 512 A100-80", "gpt3-175b", 1536, "bf16",
     "[{name: a100, device: a100-80, nodes: 64, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 8}]"},
    {"Llama-3-405B, 1024 H100", "llama-3-405b", 1024, "bf16",
     "[{name: h100, device: h100-sxm, nodes: 128, devices_per_node: 8, inside: nvlink4, network: rdma-400g, adapters: 8}]"},
    {"Pangu Ultra, 1024 Ascend 910B", "pangu-ultra", 1024, "bf16",
     "[{name: ascend, device: ascend910b, nodes: 128, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8}]"},
};

constexpr Pair kMixed[] = {
    {"Llama-2-13B, 8 A100-40 + 8 V100-32", "llama-2-13b", 128, "fp16",
     "[{name: a100, device: a100-40, nodes: 1, devices_per_node: 8, inside: nvlink3, network: rdma-100g}, {name: v100, device: v100-32, "
     "nodes: 1, devices_per_node: 8, inside: nvlink2, network: rdma-100g}]"},
    {"Llama-3-8B, 8 H100 + 16 L40S", "llama-3-8b", 64, "bf16",
     "[{name: h100, device: h100-sxm, nodes: 1, devices_per_node: 8, inside: nvlink4, network: rdma-400g}, {name: l40s, device: l40s, "
     "nodes: 2, devices_per_node: 8, inside: pcie4, network: rdma-200g}]"},
    {"Llama-2-70B, 64 H100 + 64 A100-80", "llama-2-70b", 512, "bf16",
     "[{name: h100, device: h100-sxm, nodes: 8, devices_per_node: 8, inside: nvlink4, network: rdma-400g, adapters: 8}, {name: a100, "
     "device: a100-80, nodes: 8, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 4}]",
     "rdma-200g"},
    {"Llama-2-70B, 512 A100-80 + 256 V100-32 + 1024 Ascend 910B", "llama-2-70b", 2048, "fp16",
     "[{name: a100, device: a100-80, nodes: 64, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 4}, {name: v100, "
     "device: v100-32, nodes: 32, devices_per_node: 8, inside: nvlink2, network: rdma-100g}, "
     "{name: ascend, device: ascend910b, nodes: 128, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8}]"},
};

struct Problem {
  model::JobSpec job;
  cluster::ClusterSpec cluster;
};

Problem problem_of(const Pair& pair) {
  return {model::read_job(ConfigNode::parse(text("model: {preset: ", pair.model, "}\ndata: {source: synthetic}\ntrain: {global_batch: ",
                                                 pair.batch, ", precision: ", pair.precision, "}\n"),
                                            pair.name)),
          cluster::read_cluster(
              ConfigNode::parse(text("name: cluster\nbetween: ", pair.between, "\ngroups: ", pair.cluster, "\n"), pair.name))};
}

double simulated(const plan::Plan& plan, const Problem& problem) {
  plan::check(plan, problem.job, problem.cluster);
  return sim::simulate(plan, problem.job.model, problem.job.train, problem.cluster, {}).result.step.value;
}

Json entry(const std::optional<plan::Plan>& plan, const Problem& problem) {
  if (!plan) return nullptr;
  const plan::Strategy& s = plan->stages.back().runs.front().strategy;
  return {{"step_s", simulated(*plan, problem)},
          {"predicted_s", plan->predicted->step.value},
          {"stages", plan->stages.size()},
          {"dp", s.dp},
          {"tp", s.tp},
          {"cp", s.cp},
          {"zero", s.zero},
          {"recompute", model::name_of(s.recompute)},
          {"micro_batches", plan->micro_batches},
          {"schedule", plan::name_of(plan->schedule)},
          {"devices", plan->world_size()}};
}

// Stages of equal depth and width over all devices, in the order of the groups, one strategy for all: as if the devices were alike.
std::optional<plan::Plan> best_of_equals(const search::BlockProblem& problem, cost::CostModel& cost_model) {
  const cluster::ClusterSpec& cluster = problem.cluster;
  std::int64_t common = 0;
  int devices = 0;
  int domain = 1 << 30;
  for (const auto& group : cluster.groups) {
    common = std::gcd(common, static_cast<std::int64_t>(group.nodes) * group.devices_per_node);
    devices += group.nodes * group.devices_per_node;
    domain = std::min(domain, group.domain());
  }
  const int blocks = problem.model.block_count();
  std::optional<plan::Plan> best;
  for (const std::int64_t width : plan::divisors_of(common)) {
    const int stages = devices / static_cast<int>(width);
    if (stages > blocks - 2) continue;
    for (const std::int64_t tp : plan::divisors_of(width)) {
      const std::int64_t dp = width / tp;
      if (tp > domain || plan::tensor_fault(problem.model, tp)) continue;
      for (const std::int64_t count : plan::divisors_of(problem.global_batch))
        for (const int zero : {0, 1})
          for (const model::Recompute recompute : {model::Recompute::none, model::Recompute::full}) {
            if (problem.global_batch / count % dp != 0 || (zero > 0 && dp == 1)) continue;
            plan::Plan plan;
            plan.model_fingerprint = problem.model.fingerprint();
            plan.cluster_fingerprint = cluster.fingerprint();
            plan.precision = problem.precision;
            plan.global_batch = problem.global_batch;
            plan.micro_batches = count;
            for (std::size_t g = 0; g < cluster.groups.size(); ++g)
              for (int i = 0; i < cluster.groups[g].nodes * cluster.groups[g].devices_per_node; ++i)
                plan.ranks.push_back({static_cast<int>(g), i / cluster.groups[g].devices_per_node, i % cluster.groups[g].devices_per_node});
            int next = 0;
            for (int s = 0; s < stages; ++s) {
              plan::Stage stage;
              stage.ranks.resize(static_cast<std::size_t>(width));
              std::iota(stage.ranks.begin(), stage.ranks.end(), s * static_cast<int>(width));
              const int layers = (blocks - 2) / stages + (s < (blocks - 2) % stages ? 1 : 0);
              const int last = s + 1 == stages ? blocks : next + layers + (s == 0 ? 1 : 0);
              for (int b = next; b < last; ++b) {
                plan::Strategy strategy;
                strategy.dp = static_cast<int>(dp);
                strategy.tp = static_cast<int>(tp);
                strategy.zero = zero;
                strategy.recompute = b == 0 || b + 1 == blocks ? model::Recompute::none : recompute;
                strategy.sequence_parallel = tp > 1;
                if (!stage.runs.empty() && stage.runs.back().strategy == strategy)
                  ++stage.runs.back().last;
                else
                  stage.runs.push_back({b, b + 1, strategy});
              }
              next = last;
              plan.stages.push_back(std::move(stage));
            }
            plan.predicted = cost::predict(plan, cost_model);
            bool fits = true;
            for (std::size_t r = 0; r < plan.ranks.size(); r += static_cast<std::size_t>(width))
              fits = fits && static_cast<double>(plan.predicted->memory[r].value) <= cost_model.memory_limit(plan.ranks[r].group);
            if (fits && (!best || plan.predicted->step < best->predicted->step)) best = std::move(plan);
          }
    }
  }
  return best;
}

Json compared(const Pair& pair, bool mixed) {
  const Problem problem = problem_of(pair);
  const auto begin = std::chrono::steady_clock::now();
  search::SearchResult result = search::search(problem.job, problem.cluster, {});
  search::rank_by_simulation(result, problem.job.model, problem.job.train, problem.cluster, {});
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  const search::BlockProblem blocks{.model = problem.job.model,
                                    .cluster = problem.cluster,
                                    .precision = problem.job.train.precision,
                                    .global_batch = problem.job.train.global_batch};
  cost::CostModel cost_model(problem.job.model, problem.cluster, problem.job.train.precision);
  Json out = {{"pair", pair.name},
              {"mixed", mixed},
              {"search_s", seconds.count()},
              {"family", result.best_family},
              {"tessera", entry(result.best, problem)}};
  if (mixed) {
    std::optional<plan::Plan> alone;
    for (int group = 0; group < static_cast<int>(problem.cluster.groups.size()); ++group) {
      search::BlockProblem one = blocks;
      one.space.groups = {group};
      one.effort = 4'000'000;
      one.tolerance = 1e-3;
      search::BlockAnswer answer = search::search(one);
      if (!answer.plans.empty() && (!alone || answer.plans.front().predicted->step < alone->predicted->step))
        alone = std::move(answer.plans.front());
    }
    out["one_kind"] = entry(alone, problem);
    out["as_equals"] = entry(best_of_equals(blocks, cost_model), problem);
  } else {
    search::BlockProblem whole = blocks;
    whole.space.most_tensor = whole.space.most_stages = 1;
    const search::TemplateSpace sharded{.schedules = {plan::Schedule::one_f_one_b}, .zero = {3}, .sharding_groups = true};
    out["sharded"] = entry(search::best_template(whole, sharded, cost_model), problem);
    out["template"] = entry(search::best_template(blocks, {.sharding_groups = true}, cost_model), problem);
  }
  return out;
}

}  // namespace

int main() {
  try {
    for (const Pair& pair : kPairs) std::cout << compared(pair, false).dump() << std::endl;
    for (const Pair& pair : kMixed) std::cout << compared(pair, true).dump() << std::endl;
    return 0;
  } catch (const tessera::Error& error) {
    std::cerr << "tessera_bench_gain: " << error.what() << "\n";
    return tessera::exit_code(error.code());
  }
}
