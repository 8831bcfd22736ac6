// The loop around the steps: when to evaluate, when to save, when to stop.
#pragma once

#include <atomic>
#include <filesystem>
#include <string>
#include <vector>

#include "train/trainer.hpp"

namespace tessera::train {

// What a front end wants to hear. Called on every rank; most act on rank 0 alone.
class LoopObserver {
 public:
  virtual ~LoopObserver() = default;
  virtual void on_step(const StepReport& report) = 0;
  // `steps` steps had been made. `stops_early`: train.early_stop ends the training with it.
  virtual void on_evaluation(std::int64_t steps, const EvaluationReport& report, bool stops_early) = 0;
  // The checkpoint of so many steps is committed; more may have been made since.
  virtual void on_saved(std::int64_t steps) = 0;
  // Training goes on.
  virtual void on_warning(const std::string& warning) = 0;
  // What a warning said holds no longer.
  virtual void on_note(const std::string& note) = 0;
  // Ranks, or exchanges between hosts, have become slow or fast; the links between hosts were measured again, where there are samples of
  // them. On rank 0: the plan under which the run goes on, or none where it stays.
  virtual std::optional<plan::Plan> on_other_speeds(const std::vector<SpeedChange>&, const MeasuredLinks&) { return {}; }
  // On rank 0: the parameter servers that the run is to go on with, HOST:PORT each; empty: those that it has.
  virtual std::vector<std::string> wanted_servers() { return {}; }
  virtual void on_other_servers(const OtherServers&) {}
  // Training ends here, before the job's last step: it no longer gains.
  virtual void on_early_stop(std::int64_t steps, const ValidationHistory& history) = 0;
};

struct LoopOptions {
  std::filesystem::path checkpoints;        // the folder that they go to
  std::int64_t stop_after = 0;              // make at most this many steps now; 0: up to the job's
  bool keep = true;                         // save and evaluate; false: only the steps
  bool rebalance = false;                   // ask for another plan when ranks or links between hosts become slow or fast
  std::string network = {};                 // the link that joins the plan's hosts, where they are of one group of the cluster
  const std::atomic<bool>* stop = nullptr;  // set when this process was asked to stop
};

struct LoopOutcome {
  bool stopped = false;                        // before the job's last step, because some rank was asked to
  bool stopped_early = false;                  // before the job's last step, because it no longer gained; the job is complete
  std::optional<EvaluationReport> evaluation;  // the last one
  std::int64_t plan_since = 0;                 // steps that had been made when the trainer's plan was taken
  TrafficByDimension sent_before;              // what the ranks had sent by then
};

// Whether nothing is left to do for a trainer that has loaded its state: the last step was made, or train.early_stop ends the training.
bool is_complete(const model::JobSpec& job, const Trainer& trainer);

// From the trainer's next step to the job's last, or to where train.early_stop ends it. Evaluations come before the save of the same step,
// so that the checkpoint knows them. Checkpoints are written beside the steps that follow, and one that is not whole yet is waited for
// before the next one and at the end; a failing save (disk full) is reported as a warning and tried again at the next turn. Only the last
// save of the loop, which nothing goes beside, throws.
LoopOutcome run_loop(const model::JobSpec& job, Trainer& trainer, FileSystem& files, const LoopOptions& options, LoopObserver& observer);

}  // namespace tessera::train
