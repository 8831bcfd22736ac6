#include "train/run_tables.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <sstream>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/secret.hpp"
#include "model/forms.hpp"
#include "ps/summary.hpp"
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

// What one rank says, on all of them.
std::string said_by(int rank, std::string words, comm::Communicator& comm) {
  auto size = static_cast<std::int64_t>(words.size());
  comm.world().broadcast(&size, 1, comm::DataType::i64, rank).wait();
  words.resize(static_cast<std::size_t>(size));
  if (size > 0) comm.world().broadcast(words.data(), words.size(), comm::DataType::u8, rank).wait();
  return words;
}

}  // namespace

RunTables::~RunTables() {
  if (!moving_.valid()) return;
  if (copying_) give_up_ = true;
  moving_.wait();
  // What was copied goes, unless an error is why others may not answer.
  give_up_ = std::uncaught_exceptions() > 0;
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

void RunTables::open(const program::Program& program, std::optional<std::int64_t> step) {
  if (step && !training_) {
    training_ = true;
    if (const std::optional<ps::Worker> self = worker(program, *step)) {
      tables_.emplace(job_, self, comm_);
      saves_ = self->index == 0;
      if (saves_ && !from_.empty()) tables_->load(from_, *step);
      if (saves_) {
        first_step_ = *step;
        first_look_ = real_clock().now();
        at_first_ = tables_->status();
      }
    }
    comm_.world().barrier().wait();
  } else if (!step && !training_ && !from_.empty()) {
    const std::optional<ps::Worker> self = worker(program, from_step_);
    if (self) tables_.emplace(job_, std::nullopt, comm_);
    if (self && self->index == 0) tables_->load(from_, from_step_);
    comm_.world().barrier().wait();
    from_.clear();
  } else if (!tables_ && holds(program)) {
    tables_.emplace(job_, std::nullopt, comm_);
  }
  if (step == 0) {
    if (tables_) tables_->require_empty();
    comm_.world().barrier().wait();  // nobody makes rows before all have looked
  }
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
  if (copying_) end_move();  // a table's rows are written or copied
  if (tables_) tables_->exchange();
  std::function<void()> finish;
  if (saves_) {
    if (moving_.valid()) moving_.wait();  // servers have rows no longer that are others'
    finish = tables_->begin_save(folder, step);
  }
  comm_.world().barrier().wait();
  return finish;
}

bool RunTables::has_news(const std::vector<std::string>& wanted) const {
  if (!training_) return false;
  if (!copying_) return !wanted.empty();
  return saves_ && moving_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

void RunTables::follow(const std::vector<std::string>& wanted) {
  std::string words;
  for (const std::string& place : wanted) words += place + "\n";
  words = said_by(0, std::move(words), comm_);
  if (!copying_ && !words.empty()) {
    copying_ = true;
    other_ = {};
    std::istringstream lines(words);
    for (std::string place; std::getline(lines, place);) other_.places.push_back(place);
    copying_since_ = real_clock().now();
    if (!saves_) return;
    tables_->wait();
    moving_ = std::async(std::launch::async, [this, before = std::move(moving_), from = job_.parameter_servers.places, to = other_.places,
                                              tables = tables_->opened()]() mutable {
      if (before.valid()) before.get();
      move_ = std::make_unique<ps::Move>(from, to, servers_secret_from_environment(), tables, &give_up_);
      move_->copy();
    });
    return;
  }
  std::int64_t copied = has_news({}) ? 1 : 0;
  comm_.world().all_reduce(&copied, 1, comm::DataType::i64, comm::Reduction::max).wait();
  if (copied > 0) end_move();
}

void RunTables::end_move() {
  copying_ = false;
  OtherServers ended = std::exchange(other_, {});
  const Seconds begin = real_clock().now();
  ended.after_step = step_;
  // Nothing is under way to the servers any more.
  if (tables_) tables_->finish();
  comm_.world().barrier().wait();
  std::string refused;
  if (saves_) {
    try {
      moving_.get();
      move_->finish();
      ended.rows = move_->rows();
    } catch (const Error& error) {
      refused = error.what();
      move_.reset();
    }
  }
  ended.refused = said_by(saving_rank_, std::move(refused), comm_);
  comm_.world().broadcast(&ended.rows, sizeof ended.rows, comm::DataType::u8, saving_rank_).wait();
  if (ended.refused.empty()) {
    const std::uint64_t run = run_number(comm_);
    if (tables_) tables_->go_on_at(ended.places, run);
    job_.parameter_servers.places = ended.places;
    comm_.world().barrier().wait();
    if (saves_) {
      // The servers that were left count for themselves.
      first_step_ = step_;
      first_look_ = real_clock().now();
      at_first_ = tables_->status();
      moving_ = std::async(std::launch::async, [this] {
        try {
          move_->drop();
        } catch (const Error& error) {
          log::warning(text("rows that have gone to other parameter servers are left where they were: ", error.what()));
        }
      });
    }
  }
  ended.beside = begin - copying_since_;
  ended.stood = real_clock().now() - begin;
  ended_ = std::move(ended);
}

}  // namespace tessera::train
