// tessera_bench_scale: plans Pangu Ultra's model (Yin et al. 2025) on 8192 Ascend 910B, prices and simulates the plan that its authors
// ran, and plans for a mixed cluster of 1792 devices. Prints one JSON object.
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

// DP 128, TP 8 with sequence parallelism, PP 8 of 6 interleaved stages a rank, optimizer states sharded.
constexpr const char* kPublished = "{dp: 128, tp: 8, pp: 8, schedule: interleaved, chunks: 6, micro_batches: 16, zero: 1, recompute: none}";

model::JobSpec job_of(const std::string& model, int batch, const std::string& precision, const std::string& parallel = "auto") {
  return model::read_job(ConfigNode::parse(text("model: {preset: ", model, "}\ndata: {source: synthetic}\ntrain: {global_batch: ", batch,
                                                ", precision: ", precision, "}\nparallel: ", parallel, "\n"),
                                           "train.yaml"));
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

// As `tessera plan` does.
Json planned(const model::JobSpec& job, const cluster::ClusterSpec& cluster) {
  const auto begin = std::chrono::steady_clock::now();
  search::SearchResult result = search::search(job, cluster, {}, {.top = 0, .vendors = {}});
  const double seconds = seconds_since(begin);
  search::rank_by_simulation(result, job.model, job.train, cluster, {});
  Json out = {{"devices", cluster.device_count()},
              {"search_s", seconds},
              {"considered", result.considered},
              {"family", result.best_family},
              {"bound_s", result.bound}};
  out["plan"] = described(result.best, sim::simulate(result.best, job.model, job.train, cluster, {}).result, job.model, cluster);
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
    const model::JobSpec theirs = job_of("pangu-ultra", 2048, "bf16", kPublished);
    search::SearchResult planned_theirs = search::search(theirs, ascend, {}, {.top = 0, .vendors = {}});
    search::rank_by_simulation(planned_theirs, theirs.model, theirs.train, ascend, {});
    const auto begin = std::chrono::steady_clock::now();
    const sim::Result simulated = sim::simulate(planned_theirs.best, theirs.model, theirs.train, ascend, {}).result;
    out["simulate_s"] = seconds_since(begin);
    out["published"] = described(planned_theirs.best, simulated, theirs.model, ascend);
    out["mixed"] = planned(job_of("llama-2-70b", 2048, "fp16"), cluster::read_cluster(ConfigNode::parse(kMixed, "mixed.yaml")));
    std::cout << out.dump() << "\n";
    return 0;
  } catch (const Error& error) {
    std::cerr << "tessera_bench_scale: " << error.what() << "\n";
    return exit_code(error.code());
  }
}
