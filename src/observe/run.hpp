// A run's folder, runs/NAME/:
//
//   train.yaml          resolved, with overrides        plan.json       the plan it ran under
//   metrics.jsonl       one line a step                 evaluations.jsonl   one line an evaluation
//   tensorboard/        the same for TensorBoard        trace.json      the last steps' instructions
//   checkpoints/        see checkpoint/checkpoint.hpp   log.txt         what was shown
//   data.json           what the samples rest on        lock            held while a process writes the run
//   servers-asked.json, servers-taken.json              other parameter servers (other_servers.hpp)
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "observe/metrics.hpp"

namespace tessera::observe {

enum class IfExists {
  refuse,  // an error that names the ways on
  resume,  // it must exist and have a checkpoint
  replace  // it is removed first
};

// Throws invalid_config when a run of that name exists and may not be touched or another process writes it, not_found when there is nothing
// to resume. With `replace`, a folder that is no run's is refused. Touches nothing.
void check_run(const std::filesystem::path& run, IfExists if_exists);

// Steps of the checkpoints that were written to their end, ascending; whether they are whole, only reading them can say.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& run);

// What --resume and --overwrite mean, which exclude each other.
IfExists if_exists_of(bool resume, bool overwrite);

// Held by the process that started a run, for as long as it is trained. Where a file system has no locks (flock), it holds nothing.
class RunLock {
 public:
  // Throws invalid_config when another process holds it, io.
  explicit RunLock(const std::filesystem::path& run);
  ~RunLock();
  RunLock(RunLock&& other) noexcept;
  RunLock& operator=(RunLock&&) = delete;

 private:
  int descriptor_ = -1;
};

// Whether some process holds the lock.
bool is_written(const std::filesystem::path& run);

// Removes a run's folder; an interruption leaves no half of it that looks like a run. Throws not_found where it is no run's folder,
// invalid_config when another process writes it, io.
void remove_run(const std::filesystem::path& run);

// Checks, and makes the folder and checkpoints/ in it; a run that is replaced goes here. Also throws io when the disk refuses.
[[nodiscard]] RunLock prepare_run(const std::filesystem::path& run, IfExists if_exists);

// Appends to a run's files. One process per run; not thread-safe. A disk that is full does not end the training: the line is
// left out whole, and the log has one warning.
class RunWriter {
 public:
  // Lines of steps from `next_step` on, and of evaluations after `next_evaluation` steps and more, are removed first (rewritten whole or
  // not at all), so that each stands once: a run that went on after its last checkpoint left them. Throws io.
  RunWriter(std::filesystem::path run, std::int64_t next_step, std::int64_t next_evaluation);
  ~RunWriter();

  void step(const StepMetrics& metrics);
  void evaluation(const EvaluationMetrics& metrics);
  const std::filesystem::path& folder() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::observe
