// Internal. A thread that looks on disk for rows that will be wanted soon.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "ps/cold_search.hpp"

namespace tessera::ps {

// Keys of which some are on disk, and what was found. The pieces may be merged or joined by newer ones meanwhile: whoever asks looks
// whether they were.
struct Ahead {
  std::vector<std::uint64_t> keys;
  std::vector<Pieces> pieces;                  // of each partition; they stay as long as this
  std::vector<std::uint32_t> changes;          // of each partition, when it began
  std::vector<const std::byte*> records = {};  // one a key, null where there is none; behind `done`
  bool resident = true;                        // as ColdSearch::find returned; behind `done`
  std::atomic<bool> done = false, unwanted = false;
};

// Belongs to one thread.
class LookAhead {
 public:
  LookAhead(const PieceFormat& format, const ScratchFile& file) : search_(format, file) {}
  ~LookAhead();
  LookAhead(const LookAhead&) = delete;
  LookAhead& operator=(const LookAhead&) = delete;

  // Precondition: the file is mapped, and stays so until wait().
  void begin(std::shared_ptr<Ahead> ahead);
  // Until nothing is looked for any more; of what has not begun, nothing is.
  void wait();

 private:
  void run();

  ColdSearch search_;  // its thread's
  std::mutex mutex_;   // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Ahead>> waiting_;
  bool busy_ = false, ends_ = false;
  std::thread thread_;  // from the first begin() on
};

}  // namespace tessera::ps
