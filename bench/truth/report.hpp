// What the comparison prints.
#pragma once

#include <string>
#include <vector>

#include "tasks.hpp"

namespace tessera::truth {

struct Score {
  int rows = 0;
  double mape = 0;       // percent, of the step's time
  double worst = 0;      // percent
  double tau = 0;        // Kendall's, between priced and measured seconds of a step
  double tau_token = 0;  // the same for the seconds of a device for a token, where models and batches of a source differ less
};

struct Priced {
  const Row* row = nullptr;
  double seconds = 0;
  bool fitted = false;  // the row is one of those that a calibration was fitted on
};

Score score_of(const std::vector<Priced>& rows);

// The rows of which the reader guessed something, by what it guessed; a row stands under each of its guesses.
std::vector<std::pair<std::string, std::vector<Priced>>> by_guess(const std::vector<Priced>& rows);
// Rows priced with the calibrations that are compiled in or, when `fresh`, with those that the tasks give now.
std::vector<Priced> price_all(const std::vector<Row>& rows, const std::vector<Task>& tasks, bool fresh);
// Rows of one source, with an accelerator's parameters fitted on the calibration rows of all other sources on that accelerator.
// Rows of accelerators on which there is no other source are left out.
std::vector<Priced> price_left_out(const std::string& source, const std::vector<Row>& rows, const std::vector<Task>& tasks);

// Rows of one source and family of devices beside the three that their stack was calibrated on, as `tessera calibrate` does it: those on
// the fewest devices, on the most, and in the middle.
std::vector<Priced> price_calibrated(const std::string& source, const std::vector<Row>& rows);

// Sharded data parallelism of Llama-2-7B on 128 and 2,048 H100 (arXiv 2411.13055): what a device loses of its tokens per second, percent.
double lost_at_scale();

struct Value {
  std::string name;
  double published = 0;  // GiB, percent or milliseconds
  double priced = 0;
  bool state = false;  // weights, gradients and optimizer; otherwise activations
};
// The table of memory, when the folder has it.
std::vector<Value> price_memory(const std::filesystem::path& folder);

// The table of single layers' milliseconds, when the folder has it: forward, and backward with what is computed again.
std::vector<Value> price_layers(const std::filesystem::path& folder);

}  // namespace tessera::truth
