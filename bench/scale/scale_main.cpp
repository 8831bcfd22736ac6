// tessera_bench_scale: plans Pangu Ultra's model (Yin et al. 2025) on 8192 Ascend 910B, prices and simulates the plan that its authors
// ran, and plans for a mixed cluster of 1792 devices. Prints one JSON object.
#include <sys/resource.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/config.hpp"
#include "base/error.hpp"
#include "cost/cost_model.hpp"
#include "model/job.hpp"
#include "search/rank.hpp"
#include "search/search.hpp"

namespace {

using namespace tessera;
using Json = nlohmann::ordered_json;

constexpr const char* kAscend =
    "name: ascend\ngroups:\n  - {name: ascend, device: ascend910b, nodes: 1024, devices_per_node: 8, inside: hccs, network: rdma-200g, "
    "adapters: 8}\n";
constexpr const char* kMixed =
    "name: mixed\nbetween: rdma-100g\ngroups:\n"
    "  - {name: a100, device: a100-80, nodes: 64, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 4}\n"
    "  - {name: v100, device: v100-32, nodes: 32, devices_per_node: 8, inside: nvlink2, network: rdma-100g}\n"
    "  - {name: ascend, device: ascend910b, nodes: 128, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8}\n";

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

model::JobSpec job_of(const std::string& model, int batch, const std::string& precision) {
  return model::read_job(ConfigNode::parse(
      text("model: {preset: ", model, "}\ndata: {source: synthetic}\ntrain: {global_batch: ", batch, ", precision: ", precision, "}\n"),
      "train.yaml"));
}

// DP 128, TP 8 with sequence parallelism, PP 8, optimizer states sharded.
plan::Plan published(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  constexpr int kStages = 8;
  constexpr int kWidth = 1024;
  plan::Plan plan;
  plan.model_fingerprint = job.model.fingerprint();
  plan.cluster_fingerprint = cluster.fingerprint();
  plan.precision = job.train.precision;
  plan.global_batch = job.train.global_batch;
  plan.micro_batches = plan.global_batch / 128;
  for (int rank = 0; rank < kStages * kWidth; ++rank) plan.ranks.push_back({0, rank / 8, rank % 8});
  plan::Strategy strategy;
  strategy.dp = 128;
  strategy.tp = 8;
  strategy.zero = 1;
  strategy.sequence_parallel = true;
  const int layers = job.model.block_count() - 2;
  int next = 0;
  for (int s = 0; s < kStages; ++s) {
    plan::Stage stage;
    stage.ranks.resize(kWidth);
    std::iota(stage.ranks.begin(), stage.ranks.end(), s * kWidth);
    const int last = next + layers / kStages + (s < layers % kStages ? 1 : 0) + (s == 0 ? 1 : 0) + (s + 1 == kStages ? 1 : 0);
    stage.runs.push_back({next, last, strategy});
    next = last;
    plan.stages.push_back(std::move(stage));
  }
  return plan;
}

Json described(const plan::Plan& plan, double simulated) {
  const plan::Strategy& s = plan.stages.front().runs.front().strategy;
  const auto& memory = plan.predicted->memory;
  return {{"stages", plan.stages.size()},
          {"dp", s.dp},
          {"tp", s.tp},
          {"cp", s.cp},
          {"zero", s.zero},
          {"schedule", plan::name_of(plan.schedule)},
          {"micro_batches", plan.micro_batches},
          {"predicted_s", plan.predicted->step.value},
          {"simulated_s", simulated},
          {"memory_bytes", std::max_element(memory.begin(), memory.end())->value}};
}

// As `tessera plan` does.
Json planned(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  const auto begin = std::chrono::steady_clock::now();
  search::SearchResult result = search::search(job, cluster, {}, {.top = 0, .vendors = {}});
  const double seconds = seconds_since(begin);
  const Seconds simulated = search::rank_by_simulation(result, job.model, job.train, cluster, {});
  Json out = {{"devices", cluster.device_count()},
              {"search_s", seconds},
              {"considered", result.considered},
              {"family", result.best_family},
              {"bound_s", result.bound}};
  out["plan"] = described(result.best, simulated.value);
  return out;
}

}  // namespace

int main() {
  try {
    const model::JobSpec pangu = job_of("pangu-ultra", 2048, "bf16");
    const cluster::ClusterSpec ascend = cluster::read_cluster(ConfigNode::parse(kAscend, "ascend.yaml"));
    Json out = {{"pangu", planned(pangu, ascend)}};
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    out["peak_resident_bytes"] = usage.ru_maxrss * 1024L;
    plan::Plan theirs = published(pangu, ascend);
    plan::check(theirs, pangu, ascend);
    cost::CostModel cost_model(pangu.model, ascend, theirs.precision);
    theirs.predicted = cost::predict(theirs, cost_model);
    const auto begin = std::chrono::steady_clock::now();
    const double simulated = sim::simulate(theirs, pangu.model, pangu.train, ascend, {}).result.step.value;
    out["simulate_s"] = seconds_since(begin);
    out["published"] = described(theirs, simulated);
    out["mixed"] = planned(job_of("llama-2-70b", 2048, "fp16"), cluster::read_cluster(ConfigNode::parse(kMixed, "mixed.yaml")));
    std::cout << out.dump() << "\n";
    return 0;
  } catch (const Error& error) {
    std::cerr << "tessera_bench_scale: " << error.what() << "\n";
    return exit_code(error.code());
  }
}
