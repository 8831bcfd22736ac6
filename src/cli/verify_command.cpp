// tessera verify: the plan against one device, over a few steps: losses, gradient norms, gradients, and where they part.
#include <fmt/format.h>
#include <unistd.h>
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/file_system.hpp"
#include "base/table.hpp"
#include "base/temporary_folder.hpp"
#include "base/terminal.hpp"
#include "cli/checks.hpp"
#include "cli/commands.hpp"
#include "cli/train_command.hpp"
#include "cli/workers.hpp"
#include "observe/metrics.hpp"

namespace tessera::cli {
namespace {

struct VerifyOptions {
  std::string yaml;
  std::string plan;
  std::vector<std::string> overrides;
  int steps = 3;
  double tolerance = 0;
  bool json = false;
};

struct Side {
  std::vector<observe::StepMetrics> metrics;
  std::filesystem::path gradients;
};

// Trains a few steps under `plan` in a folder of its own.
Side run_side(const VerifyOptions& options, const cluster::ClusterSpec& cluster, const plan::Plan& plan,
              const std::filesystem::path& folder) {
  real_file_system().create_directories(folder);
  const std::filesystem::path plan_file = folder / "plan.json";
  write_whole(real_file_system(), plan_file, plan::to_json(plan));
  write_whole(real_file_system(), folder / "cluster.yaml", cluster::to_yaml(cluster));
  const Side side{{}, folder / "gradients"};
  std::vector<std::string> arguments = {
      "train", options.yaml,    "--plan", plan_file.string(), "--cluster", (folder / "cluster.yaml").string(),
      "--run", folder.string(), "--json", "--quiet"};
  for (const auto& setting : options.overrides) arguments.insert(arguments.end(), {"--set", setting});
  arguments.insert(arguments.end(), {"--stop-after", std::to_string(options.steps), "--gradients", side.gradients.string()});
  control::run_workers(worker_commands(arguments, plan.ranks, cluster), {});
  return {observe::read_metrics(folder / "metrics.jsonl"), side.gradients};
}

plan::Plan one_device(const plan::Plan& plan, const model::JobSpec& job) {
  plan::Plan single = plan;
  single.predicted.reset();
  single.ranks = {plan.ranks.front()};
  single.micro_batches = 1;
  single.schedule = plan::Schedule::one_f_one_b;
  single.order.clear();
  if (!plan.servers.empty()) single.servers = {{.rank = 0, .threads = 1}};
  single.delayed_exchange = plan.staleness > 0;  // which changes what is computed
  if (single.lengths) single.lengths->groups = {{}};
  single.stages = {};
  plan::Stage stage;
  stage.ranks = {0};
  stage.runs.push_back({0, job.model.block_count(), {}});
  single.stages.push_back(std::move(stage));
  return single;
}

// What is not a number differs from everything.
double relative(double a, double b) {
  const double difference = std::abs(a - b) / std::max(1e-30, std::abs(b));
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

void verify(const VerifyOptions& options) {
  const model::JobSpec job = model::read_job(options.yaml, options.overrides);
  const cluster::ClusterSpec cluster = cluster::resolve(job.cluster);
  const std::optional<std::filesystem::path> file =
      options.plan.empty() ? std::nullopt : std::optional<std::filesystem::path>(options.plan);
  const plan::Plan plan = choose_plan(options.yaml, options.overrides, job, cluster, file, false, Workers({}),
                                      file ? std::vector<std::int64_t>() : lengths_if_known(job))
                              .plan;
  const double tolerance = options.tolerance > 0 ? options.tolerance : plan.precision == model::Precision::f32 ? 1e-4 : 2e-2;
  const TemporaryFolder scratch;
  const Side ours = run_side(options, cluster, plan, scratch.path() / "plan");
  const Side one = run_side(options, cluster, one_device(plan, job), scratch.path() / "one");
  const std::filesystem::path report = scratch.path() / "gradients.json";
  control::run_workers(worker_commands({"compare", ours.gradients.string(), one.gradients.string(), "--output", report.string()},
                                       {plan.ranks.front()}, cluster),
                       {});
  const auto gradients = nlohmann::ordered_json::parse(read_whole(report));
  double worst_loss = 0;
  double worst_norm = 0;
  // With a delayed exchange a step's norm is known in the next one; the last one's not at all.
  std::vector<double> norms;
  for (std::size_t i = plan.delayed_exchange ? 1 : 0; i < ours.metrics.size(); ++i) norms.push_back(ours.metrics[i].grad_norm);
  norms.resize(ours.metrics.size(), std::numeric_limits<double>::quiet_NaN());
  const std::size_t known = ours.metrics.size() - (plan.delayed_exchange && !ours.metrics.empty() ? 1 : 0);
  for (std::size_t i = 0; i < std::min(ours.metrics.size(), one.metrics.size()); ++i) {
    worst_loss = std::max(worst_loss, relative(ours.metrics[i].loss, one.metrics[i].loss));
    if (i < known) worst_norm = std::max(worst_norm, relative(norms[i], one.metrics[i].grad_norm));
  }
  const bool same_length = ours.metrics.size() == one.metrics.size() && !one.metrics.empty();
  const bool agrees = same_length && worst_loss <= tolerance && worst_norm <= 10 * tolerance;
  if (options.json) {
    const nlohmann::ordered_json out = {
        {"agrees", agrees},         {"steps", one.metrics.size()},
        {"worst_loss", worst_loss}, {"worst_grad_norm", known == 0 ? nlohmann::ordered_json() : nlohmann::ordered_json(worst_norm)},
        {"tolerance", tolerance},   {"gradients", gradients}};
    std::printf("%s\n", out.dump().c_str());
  } else {
    using Align = Table::Align;
    const int columns = columns_of(STDOUT_FILENO);
    Table steps({{"step", Align::right},
                 {"loss, plan", Align::right},
                 {"one device", Align::right},
                 {"differ", Align::right},
                 {"norm, plan", Align::right},
                 {"one device", Align::right},
                 {"differ", Align::right}});
    for (std::size_t i = 0; i < std::min(ours.metrics.size(), one.metrics.size()); ++i)
      steps.add({text(one.metrics[i].step), fmt::format("{:.6f}", ours.metrics[i].loss), fmt::format("{:.6f}", one.metrics[i].loss),
                 fmt::format("{:.1e}", relative(ours.metrics[i].loss, one.metrics[i].loss)), fmt::format("{:.6f}", norms[i]),
                 fmt::format("{:.6f}", one.metrics[i].grad_norm),
                 i < known ? fmt::format("{:.1e}", relative(norms[i], one.metrics[i].grad_norm)) : "-"});
    Table tensors({{"gradients of the last step that differ most", Align::wrapped}, {"relative to their norm", Align::right}});
    for (std::size_t i = 0; i < std::min<std::size_t>(5, gradients.size()); ++i)
      tensors.add({gradients[i]["name"].get<std::string>(), fmt::format("{:.1e}", gradients[i]["difference"].get<double>())});
    std::printf("%s%s", steps.text(columns).c_str(), tensors.text(columns).c_str());
    std::printf("%s within %g\n", agrees ? "the plan trains the same model:" : "THE PLAN DOES NOT TRAIN THE SAME MODEL: not", tolerance);
  }
  if (!agrees) throw CLI::RuntimeError(exit_code(ErrorCode::corrupt));
}

}  // namespace

void add_verify_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("verify", "Train a few steps under the plan and on one device, and compare")->group(kPlanGroup);
  auto options = std::make_shared<VerifyOptions>();
  command->add_option("train_yaml", options->yaml, "What to train")->required();
  command->add_option("--plan", options->plan, "The plan to verify (default: the one that training would use)");
  command->add_option("--steps", options->steps, "How many steps (default: 3)")->check(whole_number(1, 1 << 30));
  command->add_option("--tolerance", options->tolerance, "Largest relative difference of a loss (default: 1e-4, in bf16 2e-2)")
      ->check(number_above_zero());
  command->add_option("--set", options->overrides, "Override a key of the YAML (repeatable)")->type_name("KEY=VALUE");
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options] { verify(*options); });
}

}  // namespace tessera::cli
