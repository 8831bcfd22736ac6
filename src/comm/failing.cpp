// How a task ends before its time.
#include <new>

#include "comm/engine.hpp"

namespace tessera::comm {
namespace {

std::string list_of(const std::vector<int>& ranks) {
  std::string list = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) list += text(i ? ", " : "", ranks[i]);
  return list;
}

Failure failure_of_current_exception(int rank) {
  try {
    throw;
  } catch (const Error& error) {
    return {error.code(), error.where().rank, error.message()};
  } catch (const std::bad_alloc&) {
    return out_of_memory(rank);
  } catch (const std::exception& error) {
    return {ErrorCode::internal, rank, text("rank ", rank, " met an error that it did not expect while it exchanged data: ", error.what())};
  } catch (...) {
    return {ErrorCode::internal, rank, text("rank ", rank, " met an exception of an unknown kind while it exchanged data")};
  }
}

}  // namespace

Failure out_of_memory(int rank) {
  return {ErrorCode::resource_exhausted, rank, text("rank ", rank, " ran out of memory while it exchanged data")};
}

Error to_error(const Failure& failure) {
  std::string hint;
  if (failure.code == ErrorCode::peer_lost && failure.rank >= 0)
    hint = text("see rank ", failure.rank, "'s log for the cause, then resume from the last checkpoint");
  if (failure.code == ErrorCode::deadline_exceeded) hint = "see whether those ranks still run: their logs say what they did last";
  if (failure.code == ErrorCode::resource_exhausted) hint = "see how much memory its host has left, and give each rank less to hold";
  if (failure.code == ErrorCode::corrupt) hint = text("see rank ", failure.rank, "'s log; all ranks must have the same version");
  if (failure.code == ErrorCode::internal && failure.rank >= 0)
    hint = text("this is a defect of Tessera; rank ", failure.rank, "'s log says more");
  if (failure.code == ErrorCode::internal && failure.rank < 0)
    hint = "every rank of a group must submit the same operations in the same order";
  return Error(failure.code, failure.message, {.file = {}, .rank = failure.rank, .block = {}}, {}, hint);
}

void Engine::abort(const std::string& reason) {
  fail({ErrorCode::peer_lost, options_.rank, text("rank ", options_.rank, " ended the task: ", reason)});
}

void Engine::fail(const Failure& failure) {
  begin_to_fail(std::make_shared<const Error>(to_error(failure)), std::make_shared<const Failure>(failure));
}

void Engine::begin_to_fail(std::shared_ptr<const Error> error, std::shared_ptr<const Failure> told) {
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = std::move(error);
    failed_ = true;
    to_tell_ = std::move(told);
    changed_.notify_all();
  }
  if (shared_) shared_->wake();
  if (device_) device_->wake();
  // Without a look at thread_: the thread itself may fail before whoever started it has stored it there.
  wake();
  const std::lock_guard lock(on_failure_mutex_);
  if (on_failure_) on_failure_(*failure());
}

void Engine::on_failure(std::function<void(const Error&)> call) {
  const std::lock_guard lock(on_failure_mutex_);
  on_failure_ = std::move(call);
  if (on_failure_ && has_failed()) on_failure_(*failure());
}

void Engine::fail_with_current_exception() noexcept {
  try {
    fail(failure_of_current_exception(options_.rank));
  } catch (...) {
    // There is no memory to say so with, but for what was put aside for this.
    begin_to_fail(last_error_, last_words_);
  }
}

void Engine::on_failed(const Failure& failure) { begin_to_fail(std::make_shared<const Error>(to_error(failure)), nullptr); }

std::shared_ptr<const Error> Engine::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Engine::give_up(const Operation& operation) {
  std::vector<int> waited;
  for (const int rank : operation.waiting_for) waited.push_back(operation.group->ranks[static_cast<std::size_t>(rank)]);
  std::string what = text(operation.description(), " was given up after ", to_text(options_.deadline));
  if (!waited.empty()) what += text("; rank ", options_.rank, " waited for ", list_of(waited));
  if (waited.size() == 1 && control_) what += control_->last_at(waited.front());
  what += missed_heartbeats();
  fail({ErrorCode::deadline_exceeded, waited.size() == 1 ? waited.front() : -1, what});
}

std::string Engine::missed_heartbeats() {
  if (!control_) return {};
  std::string missed;
  for (const auto& [rank, seconds] : control_->without_heartbeat(SteadyClock::now()))
    missed += text("; rank ", rank, " does not answer at all");
  return missed;
}

}  // namespace tessera::comm
