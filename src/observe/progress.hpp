// What training shows while it runs: on a terminal a table of losses that stays, with one line below it that renews itself; elsewhere now
// and then a plain line.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/units.hpp"
#include "observe/metrics.hpp"

namespace tessera::observe {

// How to show it. The default looks at stderr (base/terminal.hpp).
struct ProgressOptions {
  bool live = false;
  bool color = false;
  std::function<int()> width;                     // columns, asked for at each line, as windows change
  std::function<void(const std::string&)> write;  // as it is, with newlines and control sequences
  Clock* clock = nullptr;
  std::function<void(log::Level, const std::string&)> record = [](log::Level, const std::string&) {
  };                               // each line that stays, or would without a terminal
  std::string counted = "tokens";  // of which StepMetrics::tokens_per_s says how many

  static ProgressOptions from_environment();
};

// One line of at most `width` columns (0: no limit), without a newline; what matters least is left out first. `left` is what
// the rest will take.
std::string progress_line(const StepMetrics& metrics, std::int64_t total_steps, std::optional<Seconds> left, int width, bool color,
                          const std::string& counted = "tokens");
// "42 s", "3:07", "2:03:07", "4 d 02:03".
std::string duration_text(Seconds duration);
// The least of 1, 2, 5, 10, 20, 50, ... steps that makes at most about twenty rows of `total_steps`.
std::int64_t row_interval(std::int64_t total_steps);

// Not thread-safe.
class Progress {
 public:
  // Steps [next_step, total_steps) are to come. `every`: steps between two rows or plain lines; 0: row_interval, or by time.
  Progress(std::int64_t total_steps, std::int64_t next_step, std::int64_t every = 0,
           ProgressOptions options = ProgressOptions::from_environment());
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Live: renews the line, at most ten times a second, and leaves a row of the table for the first step, the last and those between them
  // that `every` says. Otherwise prints a line for these steps; where `every` is 0, for the first and the last, and between them when 1 %
  // of the steps or five seconds have passed, but not twice within a second.
  void step(const StepMetrics& metrics);
  // The loss on the validation text after `steps` steps. Live: in the table's row of that step, and `line` stands at the end if no
  // other evaluation follows. Otherwise prints `line`.
  void evaluation(std::int64_t steps, double loss, const std::string& line);
  // A line that stays.
  void note(const std::string& line);
  void warning(const std::string& warning);
  // Prints how long it took and how fast it was. Once, at the end; without it the destructor only leaves the line.
  void finish();

 private:
  void show(const std::string& line);
  std::optional<Seconds> left() const;
  bool chosen(std::int64_t step, std::int64_t every) const;
  void draw();
  void keep();
  void erase();
  void write_row();

  const std::int64_t total_steps_;
  const std::int64_t first_step_;
  const std::int64_t every_;
  const ProgressOptions options_;
  const Seconds start_;
  std::deque<double> recent_;  // seconds of the last steps
  std::optional<StepMetrics> last_;
  std::int64_t tokens_ = 0;
  double step_seconds_ = 0;
  bool drawn_ = false;  // a live line is on the screen
  std::optional<Seconds> drawn_at_;
  bool titled_ = false;             // the table has its head
  bool row_due_ = false;            // of the last step, held back for a validation loss of the same step
  std::int64_t row_step_ = -1;      // the last one that has a row
  std::optional<double> loss_;      // on the validation text, of the row that is written next
  std::string last_evaluation_;     // live: its line
  std::optional<Seconds> kept_at_;  // when a plain line was last due
  std::int64_t kept_step_ = -1;
};

}  // namespace tessera::observe
