#include "observe/runs.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/log.hpp"
#include "observe/metrics.hpp"
#include "plan/plan.hpp"

namespace tessera::observe {
namespace {

using Json = nlohmann::ordered_json;

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

std::vector<std::int64_t> committed_checkpoints(const std::filesystem::path& folder) {
  std::vector<std::int64_t> steps;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(folder, missing)) {
    const std::string name = entry.path().filename();
    std::int64_t step = 0;
    const auto* begin = name.data() + 5;
    if (!name.starts_with("step-") || !std::filesystem::exists(entry.path() / "manifest.json")) continue;
    const auto [end, problem] = std::from_chars(begin, name.data() + name.size(), step);
    if (problem == std::errc() && end == name.data() + name.size()) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
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

// "train.optimizer.lr" -> "0.0003"
void flatten(const Json& value, const std::string& path, std::map<std::string, std::string>& out) {
  if (value.is_object() && !value.empty()) {
    for (const auto& [key, member] : value.items()) flatten(member, path.empty() ? key : path + "." + key, out);
  } else {
    out[path] = value.is_string() ? value.get<std::string>() : value.dump();
  }
}

std::map<std::string, std::string> settings_of(const std::filesystem::path& run) {
  std::map<std::string, std::string> out;
  flatten(Json::parse(ConfigNode::load(run / "train.yaml").to_json()), {}, out);
  out.erase("name");
  return out;
}

}  // namespace

RunSummary summarize(const std::filesystem::path& run) {
  if (!std::filesystem::exists(run / "train.yaml") && !std::filesystem::exists(run / "metrics.jsonl"))
    throw Error(ErrorCode::not_found, "this is not a run's folder", {run.string(), 0, 0, -1, {}},
                "a folder with train.yaml and metrics.jsonl");
  RunSummary summary;
  summary.folder = run;
  summary.name = std::filesystem::absolute(run / "").parent_path().filename();
  if (std::filesystem::exists(run / "train.yaml")) {
    const ConfigNode root = ConfigNode::load(run / "train.yaml");
    if (const auto train = root.find("train"); train && train->has("steps")) summary.planned_steps = train->at("steps").as_int();
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
  for (const EvaluationMetrics& evaluation : read_evaluations(run / "evaluations.jsonl"))
    if (std::isfinite(evaluation.loss))
      summary.best_validation_loss = std::min(evaluation.loss, summary.best_validation_loss.value_or(evaluation.loss));
  summary.checkpoints = committed_checkpoints(run / "checkpoints");
  summary.plan = describe_plan(run / "plan.json");
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

RunComparison compare_runs(const std::filesystem::path& first, const std::filesystem::path& second) {
  RunComparison comparison{summarize(first), summarize(second), {}};
  const auto a = settings_of(first);
  const auto b = settings_of(second);
  std::set<std::string> keys;
  for (const auto& [key, value] : a) keys.insert(key);
  for (const auto& [key, value] : b) keys.insert(key);
  const auto value_in = [](const std::map<std::string, std::string>& settings, const std::string& key) {
    const auto found = settings.find(key);
    return found == settings.end() ? std::string() : found->second;
  };
  for (const std::string& key : keys)
    if (const ConfigDifference difference{key, value_in(a, key), value_in(b, key)}; difference.first != difference.second)
      comparison.config.push_back(difference);
  return comparison;
}

}  // namespace tessera::observe
