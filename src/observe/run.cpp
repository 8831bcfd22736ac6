#include "observe/run.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <set>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "observe/line_file.hpp"
#include "observe/tensorboard.hpp"

namespace tessera::observe {
namespace {

// Some file that only a run has.
bool is_run(const std::filesystem::path& folder) {
  return std::filesystem::exists(folder / "train.yaml") || std::filesystem::exists(folder / "checkpoints");
}

constexpr const char* kLock = "lock";

bool holds_something(const std::filesystem::path& path) {
  return std::filesystem::exists(path) && (!std::filesystem::is_directory(path) || !std::filesystem::is_empty(path));
}

// Something that would be lost: steps or checkpoints. A start that failed before its first step leaves none.
bool has_results(const std::filesystem::path& run) {
  const auto metrics = run / "metrics.jsonl";
  return holds_something(run / "checkpoints") || (std::filesystem::exists(metrics) && !std::filesystem::is_empty(metrics));
}

template <typename Lines>
void rewrite(const std::filesystem::path& path, const Lines& lines) {
  std::string content;
  for (const auto& line : lines) content += to_json(line) + "\n";
  write_whole(real_file_system(), path, content);
}

// Prepares a file of lines for appending: those from `next_step` on, and one that was cut short, are removed.
template <typename Read>
std::filesystem::path cut_back(std::filesystem::path file, const Read& read, std::int64_t next_step) {
  if (!std::filesystem::exists(file)) return file;
  auto lines = read(file);
  std::erase_if(lines, [&](const auto& line) { return line.step >= next_step; });
  rewrite(file, lines);
  return file;
}

}  // namespace

std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& run) {
  constexpr std::string_view kPrefix = "step-";
  std::set<std::int64_t> steps;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints", missing)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    std::int64_t step = 0;
    const char* const end = name.data() + name.size();
    const auto [stop, problem] = std::from_chars(name.data() + kPrefix.size(), end, step);
    // A save that was interrupted just before it became visible leaves the one that it was to replace.
    if (problem == std::errc() && (stop == end || std::string_view(stop) == ".replaced")) steps.insert(step);
  }
  return {steps.begin(), steps.end()};
}

IfExists if_exists_of(bool resume, bool overwrite) { return resume ? IfExists::resume : overwrite ? IfExists::replace : IfExists::refuse; }

void check_run(const std::filesystem::path& run, IfExists if_exists) {
  const Where where{run.string(), 0, 0, -1, {}};
  const bool exists = holds_something(run);
  if (if_exists == IfExists::refuse && exists && (has_results(run) || !is_run(run)))
    throw Error(ErrorCode::invalid_config, "a run of this name exists", where, "a name that is not taken",
                "go on with it: --resume; start over: --overwrite; keep it: give this one another name, --set name=" +
                    run.filename().string() + "-2");
  if (if_exists == IfExists::resume && !is_run(run))
    throw Error(ErrorCode::not_found, "there is no run to resume", where, "the folder of an earlier run",
                "leave --resume away to start one");
  if (if_exists == IfExists::replace && exists && !is_run(run))
    throw Error(ErrorCode::invalid_config, "this is not a run's folder; it will not be replaced", where, "a folder with a train.yaml");
  if (std::filesystem::exists(run / kLock)) RunLock{run};
  if (if_exists == IfExists::resume && checkpoint_steps(run).empty())
    throw Error(ErrorCode::not_found, "the run has no checkpoint to go on from", where, "a run that wrote one", "start over: --overwrite");
}

void remove_run(const std::filesystem::path& run) {
  if (!is_run(run))
    throw Error(ErrorCode::not_found, "this is not a run's folder", {run.string(), 0, 0, -1, {}}, "a folder with a train.yaml");
  auto removed = run;
  removed += ".removed";
  real_file_system().remove_all(removed);
  {
    const RunLock of_what_goes(run);
    real_file_system().rename(run, removed);
  }
  real_file_system().remove_all(removed);
}

bool is_written(const std::filesystem::path& run) {
  const int descriptor = ::open((run / kLock).c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return false;
  const bool held = ::flock(descriptor, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(descriptor);
  return held;
}

RunLock prepare_run(const std::filesystem::path& run, IfExists if_exists) {
  check_run(run, if_exists);
  if (if_exists == IfExists::replace && holds_something(run)) remove_run(run);
  real_file_system().create_directories(run / "checkpoints");
  return RunLock(run);
}

RunLock::RunLock(const std::filesystem::path& run) {
  const std::filesystem::path file = run / kLock;
  descriptor_ = ::open(file.c_str(), O_RDWR | O_CLOEXEC | O_CREAT, 0644);
  if (descriptor_ < 0) throw_errno("open", file, errno);
  if (::flock(descriptor_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  ::close(descriptor_);
  throw Error(ErrorCode::invalid_config, "another process is training this run", {run.string(), 0, 0, -1, {}}, {},
              "wait for it to end, or stop it first");
}
RunLock::~RunLock() {
  if (descriptor_ >= 0) ::close(descriptor_);
}
RunLock::RunLock(RunLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

struct RunWriter::Impl {
  const std::filesystem::path folder;
  LineFile metrics;
  LineFile evaluations;
  TensorBoardWriter board;

  Impl(std::filesystem::path run, std::int64_t next_step, std::int64_t next_evaluation)
      : folder(std::move(run)),
        metrics(cut_back(folder / "metrics.jsonl", read_metrics, next_step)),
        evaluations(cut_back(folder / "evaluations.jsonl", read_evaluations, next_evaluation)),
        board(folder / "tensorboard", next_step) {}
};

RunWriter::RunWriter(std::filesystem::path run, std::int64_t next_step, std::int64_t next_evaluation) {
  real_file_system().create_directories(run);
  impl_ = std::make_unique<Impl>(std::move(run), next_step, next_evaluation);
}
RunWriter::~RunWriter() = default;

const std::filesystem::path& RunWriter::folder() const { return impl_->folder; }

void RunWriter::step(const StepMetrics& m) {
  impl_->metrics.append(to_json(m) + "\n");
  impl_->board.scalars(m.step, {{"train/loss", m.loss},
                                {"train/grad_norm", m.grad_norm},
                                {"train/lr", m.lr},
                                {"speed/tokens_per_s", m.tokens_per_s},
                                {"speed/seconds", m.seconds},
                                {"speed/tflops", m.tflops},
                                {"speed/mfu", m.mfu},
                                {"memory/bytes", static_cast<double>(m.memory)}});
}

void RunWriter::evaluation(const EvaluationMetrics& m) {
  impl_->evaluations.append(to_json(m) + "\n");
  impl_->board.scalars(m.step, {{"validation/loss", m.loss}});
}

}  // namespace tessera::observe
