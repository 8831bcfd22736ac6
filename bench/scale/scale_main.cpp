// tessera_bench_scale CASE: plans for one large cluster as `tessera plan` does, and prints one JSON object. Without CASE, lists them.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/config.hpp"
#include "base/error.hpp"
#include "cost/extrapolation.hpp"
#include "model/job.hpp"
#include "plan/schedule/schedule.hpp"
#include "search/rank.hpp"
#include "search/search.hpp"

namespace {

using namespace tessera;
using Json = nlohmann::ordered_json;

// A model on a cluster. Pangu Ultra on 8192 Ascend 910B is Yin et al. 2025; `parallel` is the plan that its authors ran: dp 128, tp 8 with
// sequence parallelism, pp 8 of 6 interleaved stages a rank, optimizer states sharded.
struct Case {
  const char* name;
  const char* model;
  int batch;
  const char* precision;
  const char* parallel;
  const char* between;
  std::vector<const char*> groups;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"pangu",
       "pangu-ultra",
       2048,
       "bf16",
       "auto",
       nullptr,
       {"device: ascend910b, nodes: 1024, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8"}},
      {"published",
       "pangu-ultra",
       2048,
       "bf16",
       "{dp: 128, tp: 8, pp: 8, schedule: interleaved, chunks: 6, micro_batches: 16, zero: 1, recompute: none}",
       nullptr,
       {"device: ascend910b, nodes: 1024, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8"}},
      {"mixed",
       "llama-2-70b",
       2048,
       "fp16",
       "auto",
       "rdma-100g",
       {"device: a100-80, nodes: 64, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 4",
        "device: v100-32, nodes: 32, devices_per_node: 8, inside: nvlink2, network: rdma-100g",
        "device: ascend910b, nodes: 128, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8"}},
      {"four-kinds",
       "llama-2-70b",
       1024,
       "fp16",
       "auto",
       "rdma-200g",
       {"device: h100-sxm, nodes: 13, devices_per_node: 8, inside: nvlink4, network: rdma-400g, adapters: 8",
        "device: a100-80, nodes: 16, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 8",
        "device: l40s, nodes: 11, devices_per_node: 4, inside: pcie4, network: rdma-100g, adapters: 2",
        "device: v100-32, nodes: 24, devices_per_node: 8, inside: nvlink2, network: rdma-100g, adapters: 4"}},
      {"five-kinds",
       "pangu-ultra",
       2048,
       "fp16",
       "auto",
       "rdma-200g",
       {"device: h100-sxm, nodes: 256, devices_per_node: 8, inside: nvlink4, network: rdma-400g, adapters: 8",
        "device: a100-80, nodes: 256, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 8",
        "device: a100-40, nodes: 256, devices_per_node: 8, inside: nvlink3, network: rdma-200g, adapters: 4",
        "device: ascend910b, nodes: 256, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8",
        "device: v100-32, nodes: 226, devices_per_node: 8, inside: nvlink2, network: rdma-100g, adapters: 4"}},
      {"hundred-thousand",
       "pangu-ultra",
       2048,
       "bf16",
       "auto",
       nullptr,
       {"device: ascend910b, nodes: 12500, devices_per_node: 8, inside: hccs, network: rdma-200g, adapters: 8"}},
  };
  return all;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// A user's files.
std::string job_yaml(const Case& one) {
  return text("model: {preset: ", one.model, "}\ndata: {source: synthetic}\ntrain: {global_batch: ", one.batch,
              ", precision: ", one.precision, "}\nparallel: ", one.parallel, "\n");
}
std::string cluster_yaml(const Case& one) {
  std::string yaml = text("name: ", one.name, "\n", one.between != nullptr ? text("between: ", one.between, "\n") : "", "groups:\n");
  for (std::size_t group = 0; group < one.groups.size(); ++group) yaml += text("  - {name: group", group, ", ", one.groups[group], "}\n");
  return yaml;
}

Json described(const plan::Plan& plan, const sim::Result& simulated, const model::ModelSpec& model, const cluster::ClusterSpec& cluster) {
  const plan::Strategy& s = plan.stages.front().runs.front().strategy;
  const auto& memory = plan.predicted->memory;
  Json extrapolated = Json::array();
  for (const cost::Extrapolation& one : cost::extrapolated(plan, model, cluster)) extrapolated.push_back(to_text(one));
  return {{"stages", plan.stages.size()},
          {"stages_a_rank", plan::pipeline_of(plan).chunks},
          {"dp", s.dp},
          {"tp", s.tp},
          {"cp", s.cp},
          {"zero", s.zero},
          {"schedule", plan::name_of(plan.schedule)},
          {"micro_batches", plan.micro_batches},
          {"predicted_s", plan.predicted->step.value},
          {"simulated_s", simulated.step.value},
          {"predicted_bubble", plan.predicted->bubble},
          {"simulated_bubble", simulated.bubble},
          {"memory_bytes", std::max_element(memory.begin(), memory.end())->value},
          {"extrapolated", std::move(extrapolated)}};
}

long peak_resident_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024L;
}

// The search of `tessera plan`, without runners-up.
Json planned(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  const auto begin = std::chrono::steady_clock::now();
  search::SearchResult result = search::search(job, cluster, {}, {.top = 0, .vendors = {}});
  const double searched = seconds_since(begin);
  search::rank_by_simulation(result, job.model, job.train, cluster, {});
  const auto ranked = std::chrono::steady_clock::now();
  const sim::Result simulated = sim::simulate(result.best, job.model, job.train, cluster, {}).result;
  return {{"devices", cluster.device_count()},
          {"used", result.best.world_size()},
          {"search_s", searched},
          {"simulate_s", seconds_since(ranked)},
          {"considered", result.considered},
          {"family", result.best_family},
          {"bound_s", result.bound},
          {"plan", described(result.best, simulated, job.model, cluster)},
          {"peak_resident_bytes", peak_resident_bytes()}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    for (const Case& one : cases()) std::cout << one.name << "\n";
    return 0;
  }
  try {
    const auto found = std::find_if(cases().begin(), cases().end(), [&](const Case& one) { return std::string(one.name) == argv[1]; });
    if (found == cases().end())
      throw Error(ErrorCode::invalid_config, text("no case is called '", argv[1], "'"), {}, "a name that is listed without one");
    const std::string job = job_yaml(*found), cluster = cluster_yaml(*found);
    Json out =
        planned(model::read_job(ConfigNode::parse(job, "train.yaml")), cluster::read_cluster(ConfigNode::parse(cluster, "cluster.yaml")));
    out["train.yaml"] = job;
    out["cluster.yaml"] = cluster;
    std::cout << out.dump() << "\n";
    return 0;
  } catch (const Error& error) {
    std::cerr << "tessera_bench_scale: " << error.what() << "\n";
    return exit_code(error.code());
  }
}
