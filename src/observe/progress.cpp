#include "observe/progress.hpp"

#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"

namespace tessera::observe {
namespace {

constexpr std::int64_t kRows = 20;     // of the table, about
constexpr std::size_t kRecent = 32;    // steps that the estimate of the time left looks at
constexpr double kLiveInterval = 0.1;  // seconds
constexpr double kPlainInterval = 5.0;
constexpr double kShortestPlainInterval = 1.0;
constexpr const char* kEraseLine = "\r\033[K";

template <typename... Arguments>
std::string format(const char* pattern, Arguments... arguments) {
  char buffer[96];
  std::snprintf(buffer, sizeof buffer, pattern, arguments...);
  return buffer;
}

std::string grad_text(double norm) { return std::isnan(norm) ? "-" : format("%.3g", norm); }

struct Field {
  int rank;  // the higher, the sooner it is left out
  std::string label;
  std::string value;
};

std::vector<Field> fields_of(const StepMetrics& m, std::int64_t total_steps, std::optional<Seconds> left, const std::string& counted) {
  const int digits = static_cast<int>(std::to_string(total_steps).size());
  const double share = total_steps > 0 ? 100.0 * static_cast<double>(m.step + 1) / static_cast<double>(total_steps) : 100.0;
  std::vector<Field> fields = {
      {0, "step", format("%*lld/%lld", digits, static_cast<long long>(m.step + 1), static_cast<long long>(total_steps))},
      {6, "", format("%3.0f %%", std::floor(share))},
      {1, "loss", format("%.4f", m.loss)},
      {4, "grad", grad_text(m.grad_norm)},
      {5, "lr", format("%.2e", m.lr)},
      {7, "mem", to_text(Bytes(m.memory))},
      {2, "", text(count_text(m.tokens_per_s), " ", counted, "/s")},
      {9, "", format("%.3g TFLOP/s", m.tflops)}};
  if (m.mfu > 0) fields.push_back({8, "MFU", format("%.1f %%", 100 * m.mfu)});
  if (left) fields.push_back({3, "left", duration_text(*left)});
  return fields;
}

// Seven columns of 73 places; what a narrow terminal cuts off matters least.
std::string row_of(const std::string& step, const std::string& loss, const std::string& validation, const std::string& grad,
                   const std::string& lr, const std::string& speed, const std::string& elapsed) {
  return format("%9s  %8s  %10s  %8s  %9s  %9s  %9s", step.c_str(), loss.c_str(), validation.c_str(), grad.c_str(), lr.c_str(),
                speed.c_str(), elapsed.c_str());
}

std::size_t width_of(const std::vector<Field>& fields) {
  std::size_t width = 0;
  for (const Field& field : fields) width += (width > 0 ? 2 : 0) + field.label.size() + (field.label.empty() ? 0 : 1) + field.value.size();
  return width;
}

}  // namespace

ProgressOptions ProgressOptions::from_environment() {
  ProgressOptions options;
  options.live = is_live_terminal(STDERR_FILENO);
  options.color = color_wanted(STDERR_FILENO);
  options.width = [] {
    const int columns = columns_of(STDERR_FILENO);
    return columns > 0 ? columns : 80;
  };
  options.write = [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  };
  options.clock = &real_clock();
  options.record = log::record;
  return options;
}

std::string duration_text(Seconds duration) {
  const auto total = static_cast<long long>(std::llround(std::max(0.0, duration.value)));
  const long long hours = total / 3600;
  const long long minutes = total / 60 % 60;
  if (total < 60) return format("%lld s", total);
  if (hours == 0) return format("%lld:%02lld", minutes, total % 60);
  if (hours < 24) return format("%lld:%02lld:%02lld", hours, minutes, total % 60);
  return format("%lld d %02lld:%02lld", hours / 24, hours % 24, minutes);
}

std::int64_t row_interval(std::int64_t total_steps) {
  for (std::int64_t unit = 1;; unit *= 10)
    for (const std::int64_t digit : {1, 2, 5})
      if (digit * unit * kRows >= total_steps) return digit * unit;
}

std::string progress_line(const StepMetrics& metrics, std::int64_t total_steps, std::optional<Seconds> left, int width, bool color,
                          const std::string& counted) {
  std::vector<Field> fields = fields_of(metrics, total_steps, left, counted);
  while (width > 0 && fields.size() > 1 && width_of(fields) > static_cast<std::size_t>(width))
    fields.erase(std::max_element(fields.begin(), fields.end(), [](const Field& a, const Field& b) { return a.rank < b.rank; }));
  std::string line;
  for (const Field& field : fields) {
    if (!line.empty()) line += "  ";
    if (!field.label.empty()) line += color ? "\033[2m" + field.label + "\033[0m " : field.label + " ";
    line += color && field.rank <= 1 ? "\033[1m" + field.value + "\033[0m" : field.value;
  }
  if (!color && width > 0) line.resize(std::min(line.size(), static_cast<std::size_t>(width)));
  return line;
}

Progress::Progress(std::int64_t total_steps, std::int64_t next_step, std::int64_t every, ProgressOptions options)
    : total_steps_(total_steps), first_step_(next_step), every_(every), options_(std::move(options)), start_(options_.clock->now()) {}

Progress::~Progress() {
  if (drawn_) options_.write("\n");
}

std::optional<Seconds> Progress::left() const {
  if (recent_.empty() || !last_) return std::nullopt;
  // The median, so that one slow step (a checkpoint, a page fault) does not move it.
  std::vector<double> sorted(recent_.begin(), recent_.end());
  std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2), sorted.end());
  return Seconds(sorted[sorted.size() / 2] * static_cast<double>(std::max<std::int64_t>(0, total_steps_ - last_->step - 1)));
}

bool Progress::chosen(std::int64_t step, std::int64_t every) const {
  return step == first_step_ || step + 1 >= total_steps_ || (step + 1) % every == 0;
}

void Progress::step(const StepMetrics& metrics) {
  if (row_due_) write_row();
  last_ = metrics;
  tokens_ += metrics.tokens;
  step_seconds_ += metrics.seconds;
  recent_.push_back(metrics.seconds);
  if (recent_.size() > kRecent) recent_.pop_front();

  const double now = options_.clock->now().value;
  const bool last = metrics.step + 1 >= total_steps_;
  if (options_.live) {
    row_due_ = chosen(metrics.step, every_ > 0 ? every_ : row_interval(total_steps_));
    if (last || !drawn_ || !drawn_at_ || now - drawn_at_->value >= kLiveInterval) draw();
  }
  const double waited = kept_at_ ? now - kept_at_->value : kPlainInterval;
  const bool far = 100 * (metrics.step - kept_step_) >= total_steps_;
  const bool timely = last || waited >= kPlainInterval || (far && waited >= kShortestPlainInterval);
  if (every_ > 0 ? chosen(metrics.step, every_) : timely) keep();
}

void Progress::draw() {
  if (!last_) return;
  // A line as wide as the terminal would wrap on some of them.
  options_.write(kEraseLine +
                 progress_line(*last_, total_steps_, left(), std::max(1, options_.width() - 1), options_.color, options_.counted));
  drawn_ = true;
  drawn_at_ = options_.clock->now();
}

void Progress::keep() {
  const std::string line = progress_line(*last_, total_steps_, left(), 0, false, options_.counted);
  if (!options_.live) options_.write(line + "\n");
  options_.record(log::Level::info, line);
  kept_at_ = options_.clock->now();
  kept_step_ = last_->step;
}

void Progress::erase() {
  if (drawn_) options_.write(kEraseLine);
  drawn_ = false;
}

void Progress::write_row() {
  row_due_ = false;
  row_step_ = last_->step;
  const auto write = [&](const std::string& row, bool dim) {
    const std::string shown = row.substr(0, static_cast<std::size_t>(std::max(1, options_.width() - 1)));
    options_.write(dim && options_.color ? "\033[2m" + shown + "\033[0m\n" : shown + "\n");
  };
  erase();
  if (!titled_) write(row_of("step", "loss", "validation", "grad", "lr", options_.counted + "/s", "elapsed"), true);
  titled_ = true;
  write(row_of(std::to_string(last_->step + 1), format("%.4f", last_->loss), loss_ ? format("%.4f", *loss_) : std::string(),
               grad_text(last_->grad_norm), format("%.2e", last_->lr), count_text(last_->tokens_per_s),
               duration_text(options_.clock->now() - start_)),
        false);
  loss_.reset();
}

void Progress::evaluation(std::int64_t steps, double loss, const std::string& line) {
  if (!options_.live || !last_ || last_->step + 1 != steps) return note(line);
  loss_ = loss;
  last_evaluation_ = line;
  options_.record(log::Level::info, line);
  write_row();
  draw();
}

void Progress::note(const std::string& line) {
  show(line);
  options_.record(log::Level::info, line);
}

void Progress::warning(const std::string& warning) {
  show("warning: " + warning);
  options_.record(log::Level::warning, warning);
}

void Progress::show(const std::string& line) {
  if (row_due_) write_row();
  erase();
  options_.write(line + "\n");
  if (options_.live) draw();
}

void Progress::finish() {
  // A run may end before its last step.
  if (options_.live && last_ && row_step_ != last_->step) write_row();
  erase();
  if (last_ && kept_step_ != last_->step) keep();
  if (!last_evaluation_.empty()) options_.write(last_evaluation_ + "\n");
  if (!last_) return;
  const std::int64_t steps = last_->step + 1 - first_step_;
  const Seconds wall(options_.clock->now().value - start_.value);
  const std::string line = text(steps, steps == 1 ? " step in " : " steps in ", duration_text(wall), ", ",
                                count_text(step_seconds_ > 0 ? static_cast<double>(tokens_) / step_seconds_ : 0), " ", options_.counted,
                                "/s while training, last loss ", format("%.4f", last_->loss));
  options_.write(line + "\n");
  options_.record(log::Level::info, line);
}

}  // namespace tessera::observe
