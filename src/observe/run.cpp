#include "observe/run.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
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

// Prepares a file of lines for appending: those that are to go, and one that was cut short, are removed.
std::filesystem::path cut_back(std::filesystem::path metrics, std::int64_t next_step) {
  if (!std::filesystem::exists(metrics)) return metrics;
  const bool evaluations = metrics.filename() == "evaluations.jsonl";
  if (evaluations) {
    auto lines = read_evaluations(metrics);
    std::erase_if(lines, [&](const EvaluationMetrics& line) { return line.step > next_step; });
    rewrite(metrics, lines);
  } else {
    auto lines = read_metrics(metrics);
    std::erase_if(lines, [&](const StepMetrics& line) { return line.step >= next_step; });
    rewrite(metrics, lines);
  }
  return metrics;
}

}  // namespace

bool has_checkpoint(const std::filesystem::path& run) {
  const auto folder = run / "checkpoints";
  if (!std::filesystem::is_directory(folder)) return false;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (const auto suffix = entry.path().extension(); suffix.empty() || suffix == ".replaced") return true;
  return false;
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
  if (if_exists == IfExists::resume && !has_checkpoint(run))
    throw Error(ErrorCode::not_found, "the run has no checkpoint to go on from", where, "a run that wrote one", "start over: --overwrite");
}

RunLock prepare_run(const std::filesystem::path& run, IfExists if_exists) {
  check_run(run, if_exists);
  if (if_exists == IfExists::replace && holds_something(run)) {
    // Under another name first: an interruption does not leave half a run that looks like one.
    auto removed = run;
    removed += ".removed";
    real_file_system().remove_all(removed);
    {
      const RunLock of_what_goes(run);
      real_file_system().rename(run, removed);
    }
    real_file_system().remove_all(removed);
  }
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

  Impl(std::filesystem::path run, std::int64_t next_step)
      : folder(std::move(run)),
        metrics(cut_back(folder / "metrics.jsonl", next_step)),
        evaluations(cut_back(folder / "evaluations.jsonl", next_step)),
        board(folder / "tensorboard", next_step) {}
};

RunWriter::RunWriter(std::filesystem::path run, std::int64_t next_step) {
  real_file_system().create_directories(run);
  impl_ = std::make_unique<Impl>(std::move(run), next_step);
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

void RunWriter::evaluation(std::int64_t steps, double loss) {
  impl_->evaluations.append(to_json(EvaluationMetrics{steps, loss}) + "\n");
  impl_->board.scalars(steps, {{"validation/loss", loss}});
}

}  // namespace tessera::observe
