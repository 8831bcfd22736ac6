#include "checkpoint/checkpoint.hpp"
#include "checkpoint/element.hpp"

namespace tessera::checkpoint {

LivePieces::LivePieces(std::vector<Piece> pieces) : pieces_(std::move(pieces)), read_(pieces_.size(), 0), copied_(pieces_.size(), false) {}

void LivePieces::read(std::size_t piece, std::size_t begin, std::size_t bytes, const std::function<void(std::span<const std::byte>)>& use) {
  at::Tensor data;
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !copying_; });
    reading_ = true;
    data = pieces_[piece].data;
  }
  const auto end_reading = [&](bool well) {
    const std::lock_guard lock(mutex_);
    reading_ = false;
    if (well) read_[piece] = begin + bytes;
    // A copy takes memory no longer than it must.
    if (well && copied_[piece] && read_[piece] == data.nbytes()) pieces_[piece].data = at::Tensor();
    changed_.notify_all();
  };
  try {
    use(bytes_of(data).subspan(begin, bytes));
  } catch (...) {
    end_reading(false);
    throw;
  }
  end_reading(true);
}

void LivePieces::keep(std::size_t first, std::size_t last) {
  std::unique_lock lock(mutex_);
  copying_ = true;
  // The writer waits meanwhile: at most one read is in the way.
  changed_.wait(lock, [&] { return !reading_; });
  try {
    for (std::size_t i = first; i < last; ++i) {
      if (copied_[i] || read_[i] == pieces_[i].data.nbytes()) continue;
      pieces_[i].data = pieces_[i].data.clone();
      copied_[i] = true;
    }
  } catch (...) {
    copying_ = false;
    changed_.notify_all();
    throw;
  }
  copying_ = false;
  changed_.notify_all();
}

}  // namespace tessera::checkpoint
