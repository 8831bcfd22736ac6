// Runs beside each other: what there is, how far it got, and what two of them differ in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "observe/config_difference.hpp"

namespace tessera::observe {

enum class RunState {
  running,   // some process writes it
  complete,  // has made its last step, or was ended by train.early_stop
  stopped,   // before its last step, by a signal
  failed,    // before its last step, by an error
  imported   // has a checkpoint and no steps
};
const char* name_of(RunState state);

// What the files of one run say.
struct RunSummary {
  std::string name;
  std::filesystem::path folder;
  RunState state = RunState::stopped;
  std::int64_t steps = 0;                     // made
  std::optional<std::int64_t> planned_steps;  // train.steps of its train.yaml; not there without one
  std::string counted = "tokens";             // what `tokens` and `tokens_per_s` count; of other models images or samples
  std::int64_t tokens = 0;                    // trained on, as far as the metrics go
  std::optional<double> final_loss;           // of the last step
  std::optional<double> best_validation_loss;
  std::optional<double> best_auc;         // on validation samples, of a model of clicks
  std::optional<double> step_seconds;     // median over the steps
  std::optional<double> tokens_per_s;     // median
  std::optional<double> mfu;              // median, 0..1; not there when no step knows it
  std::optional<std::int64_t> memory;     // bytes, the largest
  std::vector<std::int64_t> checkpoints;  // steps of those that were committed; not checked
  std::string plan;                       // "dp 2 x pp 1 x tp 2, zero 1, 1f1b"; empty when there is no readable plan.json
  std::string last_error;                 // in its log.txt; empty when there is none
};

// Throws not_found when it is no run's folder, corrupt with file and line for metrics that cannot be read.
RunSummary summarize(const std::filesystem::path& run);
// All runs in a folder, by name; one that cannot be read is named in the log and left out. None where there is no such folder.
std::vector<RunSummary> list_runs(const std::filesystem::path& folder);

struct RunComparison {
  RunSummary first;
  RunSummary second;
  std::vector<ConfigDifference> config;  // only what differs, by key; "name" is left out
};
RunComparison compare_runs(const std::filesystem::path& first, const std::filesystem::path& second);

// Gives the run `from` the name of the folder `to`, also in its train.yaml, and where that names the run's own tokenizer. Throws not_found
// where it is no run, invalid_config where `to` exists or another process writes the run, io.
void rename_run(const std::filesystem::path& from, const std::filesystem::path& to);

// For people (ends with a newline; `columns`: of the terminal, 0 for no limit) and for scripts (one line).
std::string to_table(const std::vector<RunSummary>& runs, int columns = 0);
std::string to_table(const RunSummary& run, int columns = 0);
std::string to_table(const RunComparison& comparison, int columns = 0);
std::string to_json(const std::vector<RunSummary>& runs);
std::string to_json(const RunSummary& run);
std::string to_json(const RunComparison& comparison);

}  // namespace tessera::observe
