#include "train/saver.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "train/said.hpp"

namespace tessera::train {

namespace {

std::vector<int> all_ranks(const comm::Communicator& comm) {
  std::vector<int> ranks(static_cast<std::size_t>(comm.world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What a thread may meet, as an Error.
template <typename Work>
std::optional<Error> error_of(const Work& work) {
  try {
    work();
    return std::nullopt;
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::resource_exhausted, "out of memory");
  } catch (const std::exception& error) {
    return Error(ErrorCode::internal, error.what());
  }
}

// Either every rank's work succeeded, or every rank throws: its own error, or one that says which rank failed and why.
void agree(const comm::Group& group, const std::function<void()>& work) {
  const std::optional<Error> mine = error_of(work);
  std::int32_t failed = mine ? group.rank() + 1 : 0;
  group.all_reduce(&failed, 1, comm::DataType::i32, comm::Reduction::max).wait();
  if (failed == 0) return;
  // What rank 0 says is all that is shown of a save that is tried again.
  const std::string why = said_by(failed - 1, mine ? mine->message() : std::string(), group);
  if (mine) throw *mine;
  throw Error(ErrorCode::io, text("rank ", failed - 1, ": ", why));
}

void prune(const SaveRequest& request) {
  try {
    if (request.best) checkpoint::set_best(*request.files, request.folder, *request.best);
    checkpoint::prune(*request.files, request.folder, *request.keep);
  } catch (const Error& error) {
    // The checkpoint is there; superfluous ones go, and the best one is named, at the next save.
    if (error.code() != ErrorCode::io) throw;
    log::warning(text("an earlier checkpoint was not removed: ", error.what()));
  }
}

}  // namespace

Saver::Saver(comm::Communicator& comm) : comm_(comm), group_(comm.group(all_ranks(comm), "checkpoint")) {}

Saver::~Saver() { wait(); }

void Saver::write(const SaveRequest& request, const Pieces& pieces, checkpoint::LivePieces* live) const {
  checkpoint::Writer writer(*request.files, request.folder, request.state.step, comm_.rank(), comm_.world_size());
  try {
    agree(group_, [&] {
      live != nullptr ? writer.write(pieces, *live) : writer.write(pieces);
      if (request.beside) request.beside();
    });
  } catch (const Error&) {
    // Before another rank writes into this folder again.
    agree(group_, [&] {
      if (comm_.rank() == 0) writer.abandon();
    });
    throw;
  }
  agree(group_, [&] {
    if (comm_.rank() != 0) return;
    writer.commit(request.state);
    // Before another rank begins the next checkpoint, which looks like what an interrupted save has left.
    if (request.keep) prune(request);
  });
}

void Saver::save(const SaveRequest& request, const std::vector<checkpoint::Piece>& pieces) {
  ensure(!under_way(), "one save at a time");
  write(request, pieces, nullptr);
}

void Saver::begin(SaveRequest request, std::vector<Pieces> pieces) {
  ensure(!under_way(), "one save at a time");
  const Seconds begin = real_clock().now();
  Pieces all;
  ends_.clear();
  for (Pieces& of_bucket : pieces) {
    std::move(of_bucket.begin(), of_bucket.end(), std::back_inserter(all));
    ends_.push_back(all.size());
  }
  live_ = std::make_unique<checkpoint::LivePieces>(all);
  running_ = std::async(std::launch::async, [this, request = std::move(request), all = std::move(all)] {
    return SaveOutcome{request.state.step, error_of([&] { write(request, all, live_.get()); }), {}};
  });
  stopped_ = real_clock().now() - begin;
}

void Saver::keep(int bucket) {
  if (!under_way() || running_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) return;
  const Seconds begin = real_clock().now();
  const auto place = static_cast<std::size_t>(bucket);
  live_->keep(place == 0 ? 0 : ends_[place - 1], ends_[place]);
  stopped_ += real_clock().now() - begin;
}

std::optional<SaveOutcome> Saver::poll() {
  if (!under_way() || running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return wait();
}

std::optional<SaveOutcome> Saver::wait() {
  if (!under_way()) return std::nullopt;
  SaveOutcome outcome = running_.get();
  outcome.stopped = stopped_;
  live_.reset();
  return outcome;
}

}  // namespace tessera::train
