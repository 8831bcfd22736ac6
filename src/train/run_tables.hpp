// internal: a run's use of its tables on parameter servers: who opens them when, and with which rows.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/comm.hpp"
#include "model/job.hpp"
#include "plan/plan.hpp"
#include "program/program.hpp"
#include "ps/move.hpp"
#include "train/executor.hpp"
#include "train/other_servers.hpp"
#include "train/tables.hpp"

namespace tessera::train {

// Of a model without tables it does nothing. Not thread-safe; the arguments must outlive it.
class RunTables {
 public:
  RunTables(const model::JobSpec& job, const plan::Plan& plan, comm::Communicator& comm) : job_(job), plan_(plan), comm_(comm) {}
  ~RunTables();

  // For a trainer that only evaluates: reads finished rows instead of asking servers.
  void read(const program::Program& program, ps::ServingTable finished);
  // The first step, or an evaluation before it, begins with the rows of a checkpoint of that many steps.
  void resume_from(std::filesystem::path checkpoint, std::int64_t steps) {
    from_ = std::move(checkpoint);
    from_step_ = steps;
  }
  // The first step, or an evaluation before it, begins with the rows of another run's checkpoint of that many steps (Tables::begin_with).
  // Throws as check_first_rows() does.
  void begin_with(std::filesystem::path checkpoint, std::int64_t steps);

  // Gives the batches of a run of `program` the places for their rows. All ranks call it. `step`: of training, the first of which finds no
  // rows on the servers; none: an evaluation. `next`: the batches of the step after it, where there is one.
  void hold(const program::Program& program, Batches& batches, std::optional<std::int64_t> step, const std::shared_future<Batches>& next);
  // For the Executor: null on ranks whose programs read no rows.
  Tables* get() { return tables_ ? &*tables_ : nullptr; }

  // Tables::begin_save on the rank that saves, which gets its answer; the others get nothing. All ranks call it.
  std::function<void()> begin_save(const std::filesystem::path& folder, std::int64_t step);
  // What the servers have done since this trainer's first step, as servers.json says it (train/tables_report.hpp): on the rank that saves;
  // empty elsewhere, and where no step was made. All ranks call it.
  std::string report(std::int64_t step);
  // Waits for what goes on beside steps.
  void wait() {
    if (tables_) tables_->wait();
  }
  // Called by all ranks: then the servers have everything that they trained, and other ranks may go on as the workers of another run.
  void finish() {
    if (training_ && tables_) tables_->finish();
  }

  // Between two steps, of all ranks where one of them has_news(): with `wanted`, which counts on rank 0, begins to copy the rows to other
  // servers beside the steps that follow; where that has ended, goes on with those; and where those that were left hold nothing any more,
  // says so. A save has the copy begin anew.
  void follow(const std::vector<std::string>& wanted);
  bool has_news(const std::vector<std::string>& wanted) const;
  bool moves() const { return phase_ != Phase::stays; }
  // What has come of it, once, on all ranks.
  std::optional<OtherServers> other_servers() { return std::exchange(ended_, std::nullopt); }
  // At the end of a run, which does not wait until it is said.
  std::optional<OtherServers> unsaid_servers() const { return phase_ == Phase::drops ? std::optional(other_) : ended_; }
  // For a trainer that goes on where another one of the same run ended.
  void stay_at(const RunTables& before) { job_.parameter_servers.places = before.job_.parameter_servers.places; }

 private:
  bool holds(const program::Program& program) const;
  std::optional<ps::Worker> worker(const program::Program& program, std::int64_t step);
  void open(const program::Program& program, std::optional<std::int64_t> step);
  void begin();

  void copy();
  void end_copy();

  model::JobSpec job_;  // with the servers that the run has now
  const plan::Plan& plan_;
  comm::Communicator& comm_;
  std::optional<Tables> tables_;  // where this rank holds the block that reads them
  bool training_ = false;         // from the first step on
  bool saves_ = false;            // of the ranks that train them, one does
  // Of the rank that saves: at the first step.
  std::int64_t first_step_ = 0;
  Seconds first_look_ = {};
  std::vector<ps::ServerStatus> at_first_ = {};
  std::filesystem::path from_ = {};
  std::int64_t from_step_ = 0;
  bool from_another_ = false;  // run: `from_` is where this one begins
  bool begun_ = false;         // the servers had no rows of this run
  std::int64_t step_ = 0;      // steps that were made, where there are tables
  int saving_rank_ = 0;        // that of the first step on
  enum class Phase { stays, copies, drops } phase_ = Phase::stays;
  OtherServers other_ = {};  // that the rows go to
  Seconds copying_since_ = {};
  // Of the rank that saves.
  std::atomic<bool> give_up_ = false;
  std::unique_ptr<ps::Move> move_;
  std::future<void> moving_;  // what goes on with it
  std::optional<OtherServers> ended_ = {};
};

}  // namespace tessera::train
