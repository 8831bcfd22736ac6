// What a run says about each step: lines of metrics.jsonl, and of evaluations.jsonl beside it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::observe {

// One line of metrics.jsonl: {"step", "loss", "tokens", "seconds", "tokens_per_s", "mfu", "grad_norm", "lr", "tflops", "memory"}.
// A number that is not finite stands as null, and is read as NaN.
struct StepMetrics {
  std::int64_t step = 0;    // 0-based, of the step just made
  double loss = 0;          // mean per token, nats
  std::int64_t tokens = 0;  // of this step
  double seconds = 0;       // of this step
  double tokens_per_s = 0;
  double mfu = 0;        // share of the devices' peak, 0..1; 0 when the peak is not known
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double tflops = 0;        // achieved, all ranks together, 1e12 FLOP/s
  std::int64_t memory = 0;  // bytes, peak resident of rank 0
};

// One line of evaluations.jsonl: {"step", "validation_loss"}, of a classifier "accuracy", of a model of clicks "auc", and "stops_early":
// true where it ended the run.
struct EvaluationMetrics {
  std::int64_t step = 0;                // steps made before it
  double loss = 0;                      // mean per token, nats
  bool stops_early = false;             // train.early_stop ends the run with it, before its last step
  std::optional<double> accuracy = {};  // of a classifier: the share of samples whose class it finds most likely, 0..1
  std::optional<double> auc = {};       // of a model of clicks: the area under its ROC curve, 0..1
};

// On one line, without the newline.
std::string to_json(const StepMetrics& metrics);
std::string to_json(const EvaluationMetrics& metrics);

// {"key": "text", ...} on one line, in the order given; bytes that are not UTF-8 become U+FFFD.
std::string json_object(std::initializer_list<std::pair<std::string_view, std::string>> members);

// In the file's order; where a step stands twice, the later line counts. A last line that was cut short is left out; a file that does not
// exist has none. Throws corrupt with the line for one that is wrong in the middle.
std::vector<StepMetrics> read_metrics(const std::filesystem::path& path);
std::vector<EvaluationMetrics> read_evaluations(const std::filesystem::path& path);

}  // namespace tessera::observe
