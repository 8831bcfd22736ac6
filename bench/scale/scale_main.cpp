// tessera_bench_scale: searches uniform plans of Pangu Ultra's model (Yin et al. 2025) on 8192 Ascend 910B, and prices the plan that
// its authors ran. Prints one JSON object.
#include <sys/resource.h>

#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/config.hpp"
#include "base/error.hpp"
#include "plan/uniform_search.hpp"

namespace {

using namespace tessera;

cluster::ResourceGroup ascend_cluster() {
  cluster::ResourceGroup group;
  group.name = "ascend";
  group.device = cluster::known_device("ascend910b");
  group.nodes = 1024;
  group.devices_per_node = 8;
  group.inside = cluster::known_link("hccs");
  group.network = cluster::known_link("rdma-200g");
  group.adapters = 8;
  return group;
}

nlohmann::ordered_json described(const plan::UniformPlan& p, double step, double memory) {
  return {{"tp", p.tp},         {"cp", p.cp},   {"dp", p.dp},         {"pp", p.pp},       {"schedule", plan::name_of(p.schedule)}, {"chunks", p.chunks},
          {"micro_batch", p.micro_batch}, {"zero", p.zero}, {"recompute", static_cast<int>(p.again)}, {"step_s", step}, {"memory_bytes", memory}};
}

}  // namespace

int main() {
  try {
    plan::UniformProblem problem;
    problem.model = plan::transformer_of(model::read_model(ConfigNode::parse("{preset: pangu-ultra}", "pangu-ultra")));
    problem.group = ascend_cluster();
    problem.calibration = profile::calibration_for(problem.group.device.name);
    problem.global_batch = 2048;
    problem.memory = 0.95 * static_cast<double>(problem.group.device.memory.value);
    const auto begin = std::chrono::steady_clock::now();
    const plan::UniformSearchResult found = plan::search(problem);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    plan::UniformPlan published;
    published.tp = published.pp = 8;
    published.dp = 128;
    published.sequence_parallel = true;
    published.zero = 1;
    published.global_batch = problem.global_batch;
    double memory = 0;
    for (int stage = 0; stage < published.pp; ++stage)
      memory = std::max(memory, plan::memory_of(published, problem.model, problem.calibration, stage).total());
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    nlohmann::ordered_json out = {{"search_s", seconds.count()}, {"considered", found.considered}, {"peak_resident_bytes", usage.ru_maxrss * 1024L}};
    out["published"] = described(published, plan::price(published, problem.model, problem.group, problem.calibration).step, memory);
    for (const plan::UniformCandidate& best : found.families) {
      out["families"].push_back(described(best.plan, best.price.step, best.memory));
      out["families"].back()["family"] = best.family;
    }
    std::cout << out.dump() << "\n";
    return 0;
  } catch (const Error& error) {
    std::cerr << "tessera_bench_scale: " << error.what() << "\n";
    return exit_code(error.code());
  }
}
