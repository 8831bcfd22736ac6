#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/file_system.hpp"
#include "base/table.hpp"
#include "base/terminal.hpp"
#include "cli/commands.hpp"
#include "cli/plan_input.hpp"
#include "cost/cost.hpp"
#include "cost/cost_model.hpp"
#include "plan/schedule/schedule.hpp"
#include "sim/sim.hpp"

namespace tessera::cli {
namespace {

struct SimulateOptions {
  std::string yaml;
  std::string plan;
  std::string schedule;
  std::string cluster;
  std::string profile;
  std::string trace;
  std::vector<std::string> overrides;
  bool json = false;
};

// A trace of so many ranks shows each of them; a larger one those that stand for all that do the same.
constexpr int kMostTraced = 64;

void print_table(const sim::Result& result, const plan::Plan& plan, const PlanInput& input) {
  const model::JobSpec& job = input.job;
  const bool tokens = job.model.dim("vocab") > 0;
  const double each = static_cast<double>(plan.global_batch * (tokens ? job.model.dim("seq") : 1));
  std::printf("step %s, %s %s/s, model FLOPs utilization %.1f %%\n", to_text(result.step).c_str(),
              count_text(each / result.step.value).c_str(), tokens ? "tokens" : "samples",
              100 * cost::utilization(plan, job.model, input.cluster, result.step));
  if (plan.lengths) std::printf("were all samples %lld tokens long\n", static_cast<long long>(job.model.dim("seq")));
  std::printf("of all ranks' time: computing %.1f %%, exposed communication %.1f %%, idle %.1f %%\n\n", 100 * result.utilization,
              100 * result.exposed, 100 * result.bubble);
  using Align = Table::Align;
  Table table({{"rank", Align::right},
               {"stage", Align::wrapped},
               {"computing", Align::right},
               {"communicating", Align::right},
               {"idle", Align::right},
               {"memory", Align::right}});
  constexpr std::size_t kMostRows = 32;
  std::vector<std::string> stages_of(plan.ranks.size());
  for (std::size_t s = 0; s < plan.stages.size(); ++s)
    for (int rank : plan.stages[s].ranks) stages_of[rank] += text(stages_of[rank].empty() ? "" : ", ", s);
  for (std::size_t r = 0; r < std::min(kMostRows, result.ranks.size()); ++r) {
    const sim::RankResult& rank = result.ranks[r];
    table.add({text(r), stages_of[r], to_text(rank.busy), to_text(rank.exposed), to_text(rank.idle), to_text(rank.peak_memory)});
  }
  std::printf("%s", table.text(columns_of(STDOUT_FILENO)).c_str());
  if (result.ranks.size() > kMostRows) std::printf("... and %zu more ranks; --json has all\n", result.ranks.size() - kMostRows);
}

nlohmann::ordered_json json_of(const sim::Result& result, double utilization, const std::optional<plan::Prediction>& prediction) {
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const sim::RankResult& rank : result.ranks)
    ranks.push_back({{"busy_seconds", rank.busy.value},
                     {"exposed_communication_seconds", rank.exposed.value},
                     {"idle_seconds", rank.idle.value},
                     {"memory_bytes", rank.peak_memory.value}});
  nlohmann::ordered_json out = {{"step_seconds", result.step.value}};
  if (prediction) out["predicted_seconds"] = prediction->step.value;
  out["model_flops_utilization"] = utilization;
  out["computing"] = result.utilization;
  out["exposed_communication"] = result.exposed;
  out["bubble"] = result.bubble;
  out["pipeline_bubble"] = result.pipeline_bubble;
  out["ranks"] = ranks;
  return out;
}

// By the cost model's closed form, where there is one; elsewhere the simulator is what prices plans.
std::optional<plan::Prediction> predicted(const plan::Plan& plan, const PlanInput& input) {
  const auto& [job, cluster, profile] = input;
  if (!plan.order.empty() || cost::plays_exchanges(plan, cluster)) return {};
  cost::CostModel cost_model(job.model, cluster, plan.precision);
  return cost::predict(plan, cost_model);
}

void simulate(const SimulateOptions& options) {
  const PlanInput input = read_plan_input({options.yaml, options.cluster, options.profile, options.overrides});
  const auto& [job, cluster, profile] = input;
  plan::Plan plan = plan::load_plan(options.plan);
  if (!options.schedule.empty()) plan::use_schedule(plan::load_schedule(options.schedule), plan);
  plan::check(plan, job, cluster);
  const bool every = !options.trace.empty() && plan.world_size() <= kMostTraced;
  const sim::Simulation simulation =
      sim::simulate(plan, job.model, job.train, cluster, profile, every ? sim::Simulated::every_rank : sim::Simulated::one_of_alike);
  const sim::Result& result = simulation.result;
  std::vector<Bytes> memory;
  for (const sim::RankResult& rank : result.ranks) memory.push_back(rank.peak_memory);
  cost::check_fits(plan, memory, cluster);
  const std::optional<plan::Prediction> prediction = predicted(plan, input);
  if (!options.trace.empty()) write_named(options.trace, sim::to_chrome_trace(result, simulation.programs));
  if (options.json) {
    std::printf("%s\n", json_of(result, cost::utilization(plan, job.model, cluster, result.step), prediction).dump().c_str());
    return;
  }
  print_table(result, plan, input);
  if (simulation.programs.size() < result.ranks.size())
    std::printf("\n%zu rank%s for all %zu: the others do the same at the same time\n", simulation.programs.size(),
                simulation.programs.size() == 1 ? " stands" : "s stand", result.ranks.size());
  if (prediction) std::printf("\nthe cost model predicts %s\n", to_text(prediction->step).c_str());
  if (!options.trace.empty()) std::printf("trace written to %s; open it in ui.perfetto.dev or chrome://tracing\n", options.trace.c_str());
}

}  // namespace

void add_simulate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("simulate", "Run a plan against a clock: step time, waiting, memory, a trace")->group(kPlanGroup);
  auto options = std::make_shared<SimulateOptions>();
  command->add_option("train_yaml", options->yaml, "What to train")->required();
  command->add_option("--plan", options->plan, "The plan to run")->required();
  command->add_option("--schedule", options->schedule, "Work through the micro-batches in the order of this file");
  command->add_option("--cluster", options->cluster, "Run on this cluster file instead of the YAML's cluster");
  command->add_option("--profile", options->profile, "Use these measured times");
  command->add_option("--trace", options->trace, "Write a Chrome trace to this file");
  command->add_option("--set", options->overrides, kSetHelp)->type_name("KEY=VALUE");
  command->add_flag("--json", options->json, "The result as one JSON object");
  command->callback([options] { simulate(*options); });
}

}  // namespace tessera::cli
