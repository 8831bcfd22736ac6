#include "train/run_tables.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <sstream>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "model/forms.hpp"
#include "ps/summary.hpp"
#include "train/said.hpp"
#include "train/tables_report.hpp"

namespace tessera::train {
namespace {

// By which servers tell runs apart; equal on all ranks.
std::uint64_t run_number(comm::Communicator& comm) {
  std::uint64_t run = 0;
  if (comm.rank() == 0) std::memcpy(&run, random_bytes(sizeof run).data(), sizeof run);
  comm.world().broadcast(&run, sizeof run, comm::DataType::u8, 0).wait();
  return run;
}

}  // namespace

RunTables::~RunTables() {
  if (!moving_.valid()) return;
  const bool failing = std::uncaught_exceptions() > 0;
  if (failing || phase_ == Phase::copies) give_up_ = true;
  moving_.wait();
  // What was copied goes, unless an error is why others may not answer.
  give_up_ = failing;
}

bool RunTables::holds(const program::Program& program) const {
  const int block = model::tables_block(job_.model);
  return std::any_of(program.chunks.begin(), program.chunks.end(),
                     [&](const program::Chunk& chunk) { return chunk.first_block <= block && block < chunk.last_block; });
}

// Of the ranks that train the tables, which this one is; none where it does not hold them.
std::optional<ps::Worker> RunTables::worker(const program::Program& program, std::int64_t step) {
  ps::Worker self{.index = 0, .count = 0, .run = run_number(comm_), .first_step = step};
  for (const program::Program& each : program::compile(plan_, job_.model)) {
    if (!holds(each)) continue;
    if (self.count == 0) saving_rank_ = each.rank;
    if (each.rank < comm_.rank()) ++self.index;
    ++self.count;
  }
  return holds(program) ? std::optional(self) : std::nullopt;
}

void RunTables::begin_with(std::filesystem::path checkpoint, std::int64_t steps) {
  if (!model::reads_clicks(job_.model)) return;
  check_first_rows(job_, checkpoint, steps);
  resume_from(std::move(checkpoint), steps);
  from_another_ = true;
}

void RunTables::open(const program::Program& program, std::optional<std::int64_t> step) {
  const bool resumes = !from_.empty() && !from_another_;
  if (step && !training_) {
    training_ = true;
    if (const std::optional<ps::Worker> self = worker(program, *step)) {
      tables_.emplace(job_, self, comm_);
      saves_ = self->index == 0;
      if (saves_ && resumes) tables_->load(from_, *step);
      if (saves_) {
        first_step_ = *step;
        first_look_ = real_clock().now();
        at_first_ = tables_->status();
      }
    }
    comm_.world().barrier().wait();
  } else if (!step && !training_ && resumes) {
    const std::optional<ps::Worker> self = worker(program, from_step_);
    if (self) tables_.emplace(job_, std::nullopt, comm_);
    if (self && self->index == 0) tables_->load(from_, from_step_);
    comm_.world().barrier().wait();
    from_.clear();
  } else if (!tables_ && holds(program)) {
    tables_.emplace(job_, std::nullopt, comm_);
  }
  if (!step && from_another_ && !begun_) worker(program, 0);  // who is to give the rows
  if (!begun_ && (step == 0 || (!step && from_another_))) begin();
}

void RunTables::begin() {
  begun_ = true;
  if (tables_) tables_->require_empty();
  comm_.world().barrier().wait();  // nobody makes rows before all have looked
  if (!from_another_) return;
  if (comm_.rank() == saving_rank_) tables_->begin_with(from_, from_step_);
  comm_.world().barrier().wait();
}

void RunTables::read(const program::Program& program, ps::ServingTable finished) {
  if (holds(program)) tables_.emplace(job_, std::move(finished));
}

void RunTables::hold(const program::Program& program, Batches& batches, std::optional<std::int64_t> step,
                     const std::shared_future<Batches>& next) {
  if (!model::reads_clicks(job_.model)) return;
  open(program, step);
  if (step) step_ = *step + 1;
  if (!tables_) return;
  const auto cut = static_cast<std::size_t>(program.cut_index(model::tables_block(job_.model)));
  tables_->hold(batches.at(cut), step ? std::optional(Tables::Step{*step, model::table_learning_rate(job_, *step)}) : std::nullopt);
  if ((program.rows_ahead || tables_->keeps_copy()) && next.valid()) tables_->hold_next([next, cut] { return next.get().at(cut); });
}

std::string RunTables::report(std::int64_t step) {
  if (!training_) return {};
  const ps::Staleness own = tables_ ? tables_->staleness() : ps::Staleness();
  std::array<double, 2> sums = {static_cast<double>(own.pulls), static_cast<double>(own.pulls) * own.mean};
  comm_.world().all_reduce(sums.data(), sums.size(), comm::DataType::f64).wait();
  std::int64_t most = own.most;
  comm_.world().all_reduce(&most, 1, comm::DataType::i64, comm::Reduction::max).wait();
  if (!saves_) return {};
  return to_json({.passed = real_clock().now() - first_look_,
                  .steps = step - first_step_,
                  .servers = ps::since(at_first_, tables_->status()),
                  .seen = {.pulls = static_cast<std::int64_t>(sums[0]), .most = most, .mean = sums[0] > 0 ? sums[1] / sums[0] : 0}},
                 job_);
}

std::function<void()> RunTables::begin_save(const std::filesystem::path& folder, std::int64_t step) {
  if (!training_) return {};
  if (tables_) tables_->exchange();
  std::function<void()> finish;
  if (saves_) {
    finish = tables_->begin_save(folder, step);
  }
  comm_.world().barrier().wait();
  return finish;
}

bool RunTables::has_news(const std::vector<std::string>& wanted) const {
  if (!training_) return false;
  if (phase_ == Phase::stays) return !wanted.empty();
  return saves_ && moving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void RunTables::follow(const std::vector<std::string>& wanted) {
  std::string words;
  for (const std::string& place : wanted) words += place + "\n";
  words = said_by(0, std::move(words), comm_.world());
  if (phase_ == Phase::stays) {
    if (words.empty()) return;
    other_ = {};
    std::istringstream lines(words);
    for (std::string place; std::getline(lines, place);) other_.places.push_back(place);
    copying_since_ = real_clock().now();
    phase_ = Phase::copies;
    if (saves_) copy();
    return;
  }
  std::int64_t ready = has_news({}) ? 1 : 0;
  comm_.world().all_reduce(&ready, 1, comm::DataType::i64, comm::Reduction::max).wait();
  if (ready == 0) return;
  if (phase_ == Phase::copies) return end_copy();
  phase_ = Phase::stays;
  ended_ = std::exchange(other_, {});
}

void RunTables::copy() {
  tables_->wait();
  moving_ = std::async(std::launch::async, [this, before = std::move(moving_), from = job_.parameter_servers.places, to = other_.places,
                                            tables = tables_->opened()]() mutable {
    if (before.valid()) before.wait();
    if (!move_) move_ = std::make_unique<ps::Move>(from, to, servers_secret_from_environment(), tables, &give_up_);
    move_->copy();
  });
}

// The copy has ended, in one way or another.
void RunTables::end_copy() {
  const Seconds begin = real_clock().now();
  other_.after_step = step_;
  // Nothing is under way to the servers any more.
  if (tables_) tables_->finish();
  comm_.world().barrier().wait();
  std::string refused;
  bool again = false;
  if (saves_) {
    bool copied = false;
    try {
      moving_.get();
      copied = true;
      move_->finish();
    } catch (const Error& error) {
      again = copied && error.code() == ErrorCode::not_found;
      refused = error.what();
    }
    other_.rows = move_ ? move_->rows() : 0;
    if (again)
      copy();
    else if (!refused.empty())
      moving_ = std::async(std::launch::async, [move = std::move(move_)]() mutable { move.reset(); });
  }
  if (said_by(saving_rank_, again ? "again" : "", comm_.world()) == "again") return;
  other_.refused = said_by(saving_rank_, std::move(refused), comm_.world());
  comm_.world().broadcast(&other_.rows, sizeof other_.rows, comm::DataType::u8, saving_rank_).wait();
  phase_ = Phase::drops;
  other_.beside = begin - copying_since_;
  if (other_.refused.empty()) {
    const std::uint64_t run = run_number(comm_);
    if (tables_) tables_->go_on_at(other_.places, run);
    job_.parameter_servers.places = other_.places;
    comm_.world().barrier().wait();
    if (saves_) {
      // The servers that were left count for themselves.
      first_step_ = step_;
      first_look_ = real_clock().now();
      at_first_ = tables_->status();
      moving_ = std::async(std::launch::async, [this, saving = tables_->saving(), move = std::move(move_)] {
        // A save that was begun at the servers before ends there.
        while (!saving.expired() && !give_up_) std::this_thread::sleep_for(std::chrono::milliseconds(50));
        try {
          move->drop();
        } catch (const Error& error) {
          log::warning(text("rows that have gone to other parameter servers are left where they were: ", error.what()));
        }
      });
    }
  }
  other_.stood = real_clock().now() - begin;
}

}  // namespace tessera::train
