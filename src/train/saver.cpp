#include "train/saver.hpp"

#include <functional>
#include <numeric>

#include "base/log.hpp"
#include "nn/memory.hpp"

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
  std::string why = mine ? mine->message() : std::string();
  auto size = static_cast<std::int64_t>(why.size());
  group.broadcast(&size, 1, comm::DataType::i64, failed - 1).wait();
  why.resize(static_cast<std::size_t>(size));
  group.broadcast(why.data(), why.size(), comm::DataType::u8, failed - 1).wait();
  if (mine) throw *mine;
  throw Error(ErrorCode::io, text("rank ", failed - 1, ": ", why));
}

// Tensors begin at multiples of this many bytes, so that whole cache lines are copied.
constexpr std::int64_t kAlignment = 64;

std::int64_t place_of(const checkpoint::Piece& piece) {
  return (static_cast<std::int64_t>(piece.data.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Saver::Saver(comm::Communicator& comm) : comm_(comm), group_(comm.group(all_ranks(comm), "checkpoint")) {}

Saver::~Saver() { wait(); }

void Saver::write(const SaveRequest& request, const std::vector<checkpoint::Piece>& pieces) const {
  checkpoint::Writer writer(*request.files, request.folder, request.state.step, comm_.rank(), comm_.world_size());
  try {
    agree(group_, [&] { writer.write(pieces); });
  } catch (const Error&) {
    if (comm_.rank() == 0) writer.abandon();
    throw;
  }
  agree(group_, [&] {
    if (comm_.rank() == 0) writer.commit(request.state);
  });
  if (comm_.rank() != 0 || !request.keep) return;
  try {
    if (request.best) checkpoint::set_best(*request.files, request.folder, *request.best);
    checkpoint::prune(*request.files, request.folder, *request.keep);
  } catch (const Error& error) {
    // The checkpoint is there; superfluous ones go, and the best one is named, at the next save.
    if (error.code() != ErrorCode::io) throw;
    log::warning(text("an earlier checkpoint was not removed: ", error.what()));
  }
}

void Saver::save(const SaveRequest& request, const std::vector<checkpoint::Piece>& pieces) {
  ensure(!under_way(), "one save at a time");
  write(request, pieces);
}

void Saver::begin(SaveRequest request, std::vector<checkpoint::Piece> pieces) {
  ensure(!under_way(), "one save at a time");
  std::int64_t bytes = 0;
  for (const checkpoint::Piece& piece : pieces) bytes += place_of(piece);
  if (!staging_.defined() || staging_.numel() < bytes) staging_ = nn::paged_zeros(bytes, at::kByte);
  std::int64_t begin = 0;
  for (checkpoint::Piece& piece : pieces) {
    const at::Tensor copy = staging_.narrow(0, begin, static_cast<std::int64_t>(piece.data.nbytes())).view(piece.data.scalar_type());
    begin += place_of(piece);
    copy.copy_(piece.data);
    piece.data = copy;
  }
  running_ = std::async(std::launch::async, [this, request = std::move(request), pieces = std::move(pieces)] {
    return SaveOutcome{request.state.step, error_of([&] { write(request, pieces); })};
  });
}

std::optional<SaveOutcome> Saver::poll() {
  if (!under_way() || running_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return std::nullopt;
  return wait();
}

std::optional<SaveOutcome> Saver::wait() {
  if (!under_way()) return std::nullopt;
  SaveOutcome outcome = running_.get();
  nn::release_pages(staging_);
  return outcome;
}

}  // namespace tessera::train
