#include "observe/runs.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string_view>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/log.hpp"
#include "model/forms.hpp"
#include "model/job.hpp"
#include "observe/metrics.hpp"
#include "observe/run.hpp"
#include "plan/plan.hpp"

namespace tessera::observe {
namespace {

std::optional<double> median(std::vector<double> values) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty()) return std::nullopt;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

template <typename Field>
std::optional<double> median_of(const std::vector<StepMetrics>& metrics, Field StepMetrics::*field) {
  std::vector<double> values;
  for (const StepMetrics& step : metrics) values.push_back(static_cast<double>(step.*field));
  return median(std::move(values));
}

// The degrees of the first blocks; a plan of blocks that differ says so.
std::string describe_plan(const std::filesystem::path& file) {
  try {
    const plan::Plan plan = plan::load_plan(file);
    const plan::Strategy& first = plan.stages.at(0).runs.front().strategy;
    bool uniform = true;
    for (const plan::Stage& stage : plan.stages)
      for (const plan::StrategyRun& run : stage.runs) uniform = uniform && run.strategy.same_layout(first);
    std::string out = text("dp ", first.dp, " x pp ", plan.stages.size(), " x tp ", first.tp, uniform ? "" : " and others");
    if (first.zero > 0) out += text(", zero ", first.zero);
    if (first.recompute != model::Recompute::none) out += text(", recompute ", model::name_of(first.recompute));
    out += text(", ", plan.micro_batches, plan.micro_batches == 1 ? " micro-batch" : " micro-batches");
    if (plan.stages.size() > 1 || plan.delayed_exchange) out += ", " + plan.schedule_text();
    return out;
  } catch (const std::exception&) {
    return {};
  }
}

struct LastError {
  std::string message;   // its first line; empty where the log has none
  bool is_last = false;  // nothing was logged after it
};

LastError last_error(const std::filesystem::path& log) {
  constexpr std::string_view kTime = "2026-01-31 12:00:00.000 ";  // before each record; a record may have several lines
  constexpr std::string_view kLevel = "error: ";
  const auto is_record = [&](std::string_view line) {
    return line.size() > kTime.size() && line[4] == '-' && line[kTime.size() - 5] == '.';
  };
  LastError out;
  if (!std::filesystem::exists(log)) return out;
  std::istringstream lines(read_whole(log));
  for (std::string line; std::getline(lines, line);) {
    if (!is_record(line)) continue;
    out.is_last = line.compare(kTime.size(), kLevel.size(), kLevel) == 0;
    if (out.is_last) out.message = line.substr(kTime.size() + kLevel.size());
  }
  return out;
}

RunState state_of(const RunSummary& run, bool stopped_early, bool ends_with_error) {
  if (is_written(run.folder)) return RunState::running;
  if (run.steps > 0 && (stopped_early || !run.planned_steps || run.steps >= *run.planned_steps)) return RunState::complete;
  if (ends_with_error) return RunState::failed;
  return run.steps == 0 && !run.checkpoints.empty() ? RunState::imported : RunState::stopped;
}

std::map<std::string, std::string> settings_of_run(const std::filesystem::path& run) {
  auto out = settings_of(ConfigNode::load(run / "train.yaml"));
  out.erase("name");
  return out;
}

// Of a run whose train.yaml is not a whole job, tokens.
std::string counted_in_run(const std::filesystem::path& train_yaml) {
  try {
    return model::counted_in(model::read_job(train_yaml).model);
  } catch (const Error&) {
    return RunSummary().counted;
  }
}

}  // namespace

const char* name_of(RunState state) {
  switch (state) {
    case RunState::running: return "running";
    case RunState::complete: return "complete";
    case RunState::stopped: return "stopped";
    case RunState::failed: return "failed";
    case RunState::imported: return "imported";
  }
  return "stopped";
}

RunSummary summarize(const std::filesystem::path& run) {
  if (!std::filesystem::exists(run / "train.yaml") && !std::filesystem::exists(run / "metrics.jsonl"))
    throw Error(ErrorCode::not_found, "this is not a run's folder", {run.string(), 0, 0, -1, {}},
                "a folder with train.yaml and metrics.jsonl");
  RunSummary summary;
  summary.folder = run;
  summary.name = std::filesystem::absolute(run / "").parent_path().filename();
  if (std::filesystem::exists(run / "train.yaml")) {
    const ConfigNode root = ConfigNode::load(run / "train.yaml");
    const auto train = root.find("train");
    summary.counted = counted_in_run(run / "train.yaml");
    summary.planned_steps = train ? train->get("steps", model::TrainSpec().steps) : model::TrainSpec().steps;
  }
  const auto metrics = read_metrics(run / "metrics.jsonl");
  if (!metrics.empty()) {
    summary.steps = metrics.back().step + 1;
    summary.final_loss = metrics.back().loss;
    summary.step_seconds = median_of(metrics, &StepMetrics::seconds);
    summary.tokens_per_s = median_of(metrics, &StepMetrics::tokens_per_s);
    if (const auto mfu = median_of(metrics, &StepMetrics::mfu); mfu && *mfu > 0) summary.mfu = mfu;
    std::int64_t memory = 0;
    for (const StepMetrics& step : metrics) {
      summary.tokens += step.tokens;
      memory = std::max(memory, step.memory);
    }
    if (memory > 0) summary.memory = memory;
  }
  bool stopped_early = false;
  for (const EvaluationMetrics& evaluation : read_evaluations(run / "evaluations.jsonl")) {
    stopped_early = evaluation.stops_early && evaluation.step == summary.steps;
    if (std::isfinite(evaluation.loss))
      summary.best_validation_loss = std::min(evaluation.loss, summary.best_validation_loss.value_or(evaluation.loss));
    if (evaluation.auc) summary.best_auc = std::max(*evaluation.auc, summary.best_auc.value_or(*evaluation.auc));
  }
  summary.checkpoints = checkpoint_steps(run);
  summary.plan = describe_plan(run / "plan.json");
  const LastError error = last_error(run / "log.txt");
  summary.last_error = error.message;
  summary.state = state_of(summary, stopped_early, error.is_last);
  return summary;
}

std::vector<RunSummary> list_runs(const std::filesystem::path& folder) {
  std::vector<RunSummary> runs;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    if (!std::filesystem::exists(entry.path() / "train.yaml") && !std::filesystem::exists(entry.path() / "metrics.jsonl")) continue;
    try {
      runs.push_back(summarize(entry.path()));
    } catch (const Error& problem) {
      log::warning(text("leaving out a run: ", problem.what()));
    }
  }
  std::sort(runs.begin(), runs.end(), [](const RunSummary& a, const RunSummary& b) { return a.name < b.name; });
  return runs;
}

void rename_run(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (!std::filesystem::exists(from / "train.yaml"))
    throw Error(ErrorCode::not_found, "this is not a run's folder", {from.string(), 0, 0, -1, {}}, "a folder with a train.yaml");
  if (std::filesystem::exists(to))
    throw Error(ErrorCode::invalid_config, "a run of this name exists", {to.string(), 0, 0, -1, {}}, "a name that is not taken");
  const RunLock lock(from);
  ConfigNode yaml = ConfigNode::load(from / "train.yaml").with_override("name", to.filename().string());
  if (const auto data = yaml.find("data"); data && data->has("tokenizer") && data->at("tokenizer").has("file")) {
    const std::filesystem::path file = data->at("tokenizer").at("file").as_string();
    if (file.parent_path() == std::filesystem::absolute(from).lexically_normal())
      yaml = yaml.with_override("data.tokenizer.file", "\"" + (std::filesystem::absolute(to) / file.filename()).string() + "\"");
  }
  real_file_system().rename(from, to);
  write_whole(real_file_system(), to / "train.yaml", yaml.to_yaml());
}

RunComparison compare_runs(const std::filesystem::path& first, const std::filesystem::path& second) {
  return {summarize(first), summarize(second), differences(settings_of_run(first), settings_of_run(second))};
}

}  // namespace tessera::observe
