// Trains one job on this rank under a plan: steps, evaluation, saving and loading.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/file_system.hpp"
#include "comm/comm.hpp"
#include "data/data.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "profile/profile.hpp"
#include "train/executor.hpp"
#include "train/held_state.hpp"
#include "train/other_servers.hpp"
#include "train/placer.hpp"
#include "train/saver.hpp"
#include "train/speed_watch.hpp"
#include "train/traffic.hpp"
#include "train/validation.hpp"

namespace tessera::ps {
class ServingTable;
}

namespace tessera::train {

// One step, equal on all ranks except for memory.
struct StepReport {
  std::int64_t step = 0;    // 0-based, of the step just made
  double loss = 0;          // mean over the global batch's targets that count, in nats
  std::int64_t tokens = 0;  // of this step, counted or not; of images: how many there are
  Seconds seconds;
  double grad_norm = 0;  // before clipping; with a delayed exchange that of the step before, NaN in the first of a run
  double lr = 0;
  bool skipped = false;  // the gradient was not finite: no parameter was changed, on any rank
  bool stop = false;     // some rank was asked to stop
  Bytes peak_memory;     // of this process since its start, or of the accelerator that it computes on
};

struct EvaluationReport {
  double loss = 0;                 // mean per target that counts, in nats
  std::int64_t tokens = 0;         // of these
  std::int64_t correct = 0;        // of these, those that a classifier finds most likely
  std::optional<double> auc = {};  // of a model of clicks (train/auc.hpp)
};

// What was measured of the links between hosts; equal on all ranks.
struct MeasuredLinks {
  std::vector<profile::CommSample> samples;  // of each two of them (train/measure_links.hpp)
  Seconds seconds;                           // that it took
  double steps = 0;                          // that could have been made meanwhile
};

// Not thread-safe. All ranks of the plan call the same members in the same order.
class Trainer {
 public:
  // The plan must have passed plan::check. The job, the dataset and the communicator must outlive the Trainer.
  // This rank computes on `device`.
  Trainer(const model::JobSpec& job, const plan::Plan& plan, const data::Dataset& dataset, comm::Communicator& comm,
          at::Device device = at::kCPU);
  // Waits for what is under way in its buffers, and for a save: after an error, abort the communicator first.
  ~Trainer();

  void initialize();  // weights from the seed, step 0
  // Weights and, with `whole`, optimizer state and step. Throws corrupt or invalid_config (another model).
  void load(const std::filesystem::path& checkpoint, bool whole = true);
  // For a new run: begins with the weights of another run's checkpoint and, in a model with tables, its rows; optimizer states begin anew.
  // Throws as load(), and in a model with tables as check_first_rows() (train/tables.hpp).
  void begin_with(const std::filesystem::path& checkpoint);
  // What this rank holds of the state, in this trainer's own tensors: they outlive it, and its next step changes them. Also after a step
  // has failed, where no optimizer step of it had begun: other ranks may then hold the step after. Throws corrupt where one had.
  HeldState held_state(Holds holds) const;
  // Takes weights, optimizer state and step from what the ranks of this communicator hold in memory, under whatever plan they came to hold
  // it. Throws as fill_from_all() and agreed_state() (train/held_state.hpp) do.
  void load(const HeldState& held);
  // Between two steps: goes on under another plan for the same ranks, with the state that they hold, and true. `plan` counts on rank 0;
  // without one there nothing changes, and all return false. While the state changes hands it is held twice. A save must have ended.
  bool change_plan(const std::optional<plan::Plan>& plan);
  const plan::Plan& plan() const;
  // Between two steps, when no save is under way: what messages between each two of the plan's hosts take now, in samples that are named
  // for `link`. None where there are fewer than three, or hosts of several groups of the cluster. Ends what a delayed exchange has left.
  MeasuredLinks measure_links(const std::string& link);
  // A complete checkpoint under `folder`, of the steps made so far and with `history`, whose best one is kept where the job says so; all
  // ranks return when it is committed.
  void save(FileSystem& files, const std::filesystem::path& folder, std::int64_t keep, const ValidationHistory& history = {});
  // Saves beside the next steps, and returns at once. What a step is about to change before it is written is copied first, which takes that
  // much memory until it is written. It must have ended before any other save, as poll_save() or wait_for_save() say.
  void begin_save(FileSystem& files, const std::filesystem::path& folder, std::int64_t keep, const ValidationHistory& history = {});
  // How the save that was begun has ended, once: no value before, and where none was begun. Ranks may be told in different steps.
  std::optional<SaveOutcome> poll_save();
  std::optional<SaveOutcome> wait_for_save();
  // What the checkpoint that was loaded says; nothing after initialize().
  const ValidationHistory& loaded_history() const;
  // The gradients of the last step as a checkpoint in `folder`; with a delayed exchange only before finish().
  void save_gradients(FileSystem& files, const std::filesystem::path& folder);

  std::int64_t next_step() const;
  // wish_to_stop: this rank was asked to stop; every rank learns it in this step's report. `wanted_servers`: as of follow_servers().
  StepReport step(bool wish_to_stop = false, const std::vector<std::string>& wanted_servers = {});
  // After each step, of all ranks: other parameter servers for a model with tables, HOST:PORT each, which count on rank 0; empty: none are
  // wanted. Their rows are copied beside the steps that follow, and then the run goes on with them, which is returned.
  std::optional<OtherServers> follow_servers(const std::vector<std::string>& wanted);
  // What it will not come to return, as the run ends.
  std::optional<OtherServers> unsaid_servers() const;
  // Whether they are at it; then plans stay.
  bool moves_servers() const;
  // Makes what a delayed exchange has left of the last step. Evaluating and saving begin with it; so must who ends without them.
  // Also waits for rows of tables that are being pulled or pushed.
  void finish();
  bool validates() const;  // there are validation sequences
  // For a trainer that only evaluates a model of clicks: the rows to evaluate with, instead of those of parameter servers.
  void read_rows(ps::ServingTable rows);
  // At most `sequences` of them; 0: all. `scored`: where it is there and the model reads clicks, what this rank has of its samples: f32
  // [2, samples], the logits, calibrated where samples labelled 0 were left out of training (train/auc.hpp), and the labels; in the
  // samples' order where the plan has one rank.
  EvaluationReport evaluate(std::int64_t sequences, at::Tensor* scored = nullptr);

  // Called after each step, or never. Which ranks and links have become slow since the last call, or are so no longer
  // (train/speed_watch.hpp); equal on all ranks.
  std::vector<SpeedChange> watch_speed();

  // What all ranks have sent since they were connected; all call it.
  TrafficByDimension sent() const;
  // How samples and experts were placed; nothing where they are not. All ranks call it.
  std::optional<PlacementReport> placement() const;

  // What this trainer's steps have had of its tables on parameter servers: servers.json (docs/file-formats.md), on one rank; empty on the
  // others, and without tables. All ranks call it.
  std::string tables_report();

  // The instructions of the last steps (eight, or as many as were made) of all ranks as a Chrome trace (program/chrome_trace.hpp) on rank
  // 0; empty on the others. Ends what a delayed exchange has left, as finish() does.
  std::string chrome_trace();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Peak resident size of this process (VmHWM).
Bytes peak_resident();

}  // namespace tessera::train
