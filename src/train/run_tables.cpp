#include "train/run_tables.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/clock.hpp"
#include "base/secret.hpp"
#include "model/forms.hpp"
#include "ps/summary.hpp"
#include "train/tables_report.hpp"

namespace tessera::train {

bool RunTables::holds(const program::Program& program) const {
  const int block = model::tables_block(job_.model);
  return std::any_of(program.chunks.begin(), program.chunks.end(),
                     [&](const program::Chunk& chunk) { return chunk.first_block <= block && block < chunk.last_block; });
}

// Of the ranks that train the tables, which this one is; none where it does not hold them.
std::optional<ps::Worker> RunTables::worker(const program::Program& program, std::int64_t step) {
  std::uint64_t run = 0;
  if (comm_.rank() == 0) std::memcpy(&run, random_bytes(sizeof run).data(), sizeof run);
  comm_.world().broadcast(&run, sizeof run, comm::DataType::u8, 0).wait();
  ps::Worker self{.index = 0, .count = 0, .run = run, .first_step = step};
  for (const program::Program& each : program::compile(plan_, job_.model)) {
    if (!holds(each)) continue;
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

void RunTables::save(const std::filesystem::path& folder, std::int64_t step) {
  if (!training_) return;
  if (tables_) tables_->exchange();
  if (saves_) {
    std::filesystem::create_directories(folder);
    tables_->save(folder, step);
  }
  comm_.world().barrier().wait();
}

}  // namespace tessera::train
