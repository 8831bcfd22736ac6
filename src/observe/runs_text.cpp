#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/table.hpp"
#include "base/units.hpp"
#include "observe/runs.hpp"

namespace tessera::observe {
namespace {

using Json = nlohmann::ordered_json;
using Align = Table::Align;

template <typename Value, typename Format>
std::string or_dash(const std::optional<Value>& value, const Format& format) {
  return value ? format(*value) : std::string("-");
}

std::string loss_text(const std::optional<double>& loss) {
  return or_dash(loss, [](double value) { return fixed(value, 4); });
}
std::string speed_text(const RunSummary& run) {
  return or_dash(run.tokens_per_s, [&](double speed) { return text(count_text(speed), " ", run.counted, "/s"); });
}
std::string step_text(const std::optional<double>& seconds) {
  return or_dash(seconds, [](double value) { return to_text(Seconds(value)); });
}
std::string percent_text(double share) { return fixed(100 * share, 1) + " %"; }
std::string bytes_text(std::int64_t size) { return to_text(Bytes(size)); }
std::string steps_text(const RunSummary& run) {
  return run.planned_steps ? text(run.steps, "/", *run.planned_steps) : std::to_string(run.steps);
}

// "1.25 x" of the first, where both are there.
std::string ratio(const std::optional<double>& first, const std::optional<double>& second) {
  return first && second && *first > 0 ? fixed(*second / *first, 2) + " x" : std::string();
}
std::string change(const std::optional<double>& first, const std::optional<double>& second) {
  if (!first || !second) return {};
  return (*second < *first ? "" : "+") + fixed(*second - *first, 4);
}

template <typename Value>
Json json_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json json_of(const RunSummary& run) {
  return {{"name", run.name},
          {"folder", run.folder.string()},
          {"state", name_of(run.state)},
          {"steps", run.steps},
          {"planned_steps", json_or_null(run.planned_steps)},
          {"counted", run.counted},
          {"tokens", run.tokens},
          {"final_loss", json_or_null(run.final_loss)},
          {"best_validation_loss", json_or_null(run.best_validation_loss)},
          {"best_auc", json_or_null(run.best_auc)},
          {"step_seconds", json_or_null(run.step_seconds)},
          {"tokens_per_s", json_or_null(run.tokens_per_s)},
          {"mfu", json_or_null(run.mfu)},
          {"memory", json_or_null(run.memory)},
          {"checkpoints", run.checkpoints},
          {"plan", run.plan},
          {"last_error", run.last_error}};
}

std::string one_line(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

}  // namespace

std::string to_table(const std::vector<RunSummary>& runs, int columns) {
  if (runs.empty()) return "no runs yet; start one: tessera train TRAIN.yaml\n";
  Table table({{"run", Align::wrapped}, {"state"}, {"steps"}, {"loss"}, {"val loss"}, {"speed"}, {"saved"}, {"plan", Align::wrapped}});
  for (const RunSummary& run : runs)
    table.add({run.name, name_of(run.state), steps_text(run), loss_text(run.final_loss), loss_text(run.best_validation_loss),
               speed_text(run), run.checkpoints.empty() ? "-" : std::to_string(run.checkpoints.back()), run.plan.empty() ? "-" : run.plan});
  return table.text(columns);
}

std::string to_table(const RunSummary& run, int columns) {
  std::string checkpoints;
  for (const std::int64_t step : run.checkpoints) checkpoints += text(checkpoints.empty() ? "" : ", ", step);
  Table table({{"run"}, {run.name, Align::wrapped}});
  table.add({"folder", run.folder.string()});
  table.add({"state", name_of(run.state)});
  table.add({"steps", steps_text(run)});
  table.add({run.counted, count_text(static_cast<double>(run.tokens))});
  table.add({"final loss", loss_text(run.final_loss)});
  table.add({"best validation loss", loss_text(run.best_validation_loss)});
  if (run.best_auc) table.add({"best AUC", loss_text(run.best_auc)});
  table.add({"speed", speed_text(run)});
  table.add({"step", step_text(run.step_seconds)});
  table.add({"MFU", or_dash(run.mfu, percent_text)});
  table.add({"peak memory", or_dash(run.memory, bytes_text)});
  table.add({"checkpoints", checkpoints.empty() ? "-" : checkpoints});
  table.add({"plan", run.plan.empty() ? "-" : run.plan});
  if (!run.last_error.empty()) table.add({"last error", run.last_error});
  return table.text(columns);
}

std::string to_table(const RunComparison& comparison, int columns) {
  const RunSummary& a = comparison.first;
  const RunSummary& b = comparison.second;
  Table table({{""}, {a.name, Align::wrapped}, {b.name, Align::wrapped}, {"second against first"}});
  table.add({"steps", steps_text(a), steps_text(b), ""});
  table.add({a.counted == b.counted ? a.counted : text(a.counted, ", ", b.counted), count_text(static_cast<double>(a.tokens)),
             count_text(static_cast<double>(b.tokens)), ""});
  table.add({"final loss", loss_text(a.final_loss), loss_text(b.final_loss), change(a.final_loss, b.final_loss)});
  table.add({"best validation loss", loss_text(a.best_validation_loss), loss_text(b.best_validation_loss),
             change(a.best_validation_loss, b.best_validation_loss)});
  if (a.best_auc || b.best_auc) table.add({"best AUC", loss_text(a.best_auc), loss_text(b.best_auc), change(a.best_auc, b.best_auc)});
  table.add({"speed", speed_text(a), speed_text(b), a.counted == b.counted ? ratio(a.tokens_per_s, b.tokens_per_s) : ""});
  table.add({"step", step_text(a.step_seconds), step_text(b.step_seconds), ratio(a.step_seconds, b.step_seconds)});
  table.add({"MFU", or_dash(a.mfu, percent_text), or_dash(b.mfu, percent_text), ""});
  table.add({"peak memory", or_dash(a.memory, bytes_text), or_dash(b.memory, bytes_text), ""});
  table.add({"plan", a.plan.empty() ? "-" : a.plan, b.plan.empty() ? "-" : b.plan, ""});
  if (comparison.config.empty()) return table.text(columns) + "\nthe train.yamls say the same\n";
  Table config({{"in train.yaml", Align::wrapped}, {a.name, Align::wrapped}, {b.name, Align::wrapped}});
  for (const ConfigDifference& difference : comparison.config)
    config.add({difference.key, difference.first.empty() ? "-" : difference.first, difference.second.empty() ? "-" : difference.second});
  return table.text(columns) + "\n" + config.text(columns);
}

std::string to_json(const std::vector<RunSummary>& runs) {
  Json json = Json::array();
  for (const RunSummary& run : runs) json.push_back(json_of(run));
  return one_line({{"runs", json}});
}

std::string to_json(const RunSummary& run) { return one_line(json_of(run)); }

std::string to_json(const RunComparison& comparison) {
  Json config = Json::array();
  for (const ConfigDifference& difference : comparison.config)
    config.push_back({{"key", difference.key}, {"first", difference.first}, {"second", difference.second}});
  return one_line({{"first", json_of(comparison.first)}, {"second", json_of(comparison.second)}, {"config", config}});
}

}  // namespace tessera::observe
