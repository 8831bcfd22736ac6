// Internal: checkpoints of all ranks together, in place or beside the steps that follow.
#pragma once

#include <filesystem>
#include <future>
#include <optional>
#include <vector>

#include "base/file_system.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/comm.hpp"

namespace tessera::train {

// How a save has ended; equal on all ranks.
struct SaveOutcome {
  std::int64_t steps = 0;      // had been made when it began
  std::optional<Error> error;  // why there is no checkpoint of them
};

struct SaveRequest {
  FileSystem* files = nullptr;
  std::filesystem::path folder;            // runs/NAME/checkpoints
  std::optional<std::int64_t> keep;        // so many checkpoints stay; no value: all of them
  std::optional<checkpoint::Best> best;    // to be kept beside them
  checkpoint::State state;
};

// Not thread-safe; all ranks call the same members in the same order. The communicator must outlive it, and so must the request's files
// a save that goes on.
class Saver {
 public:
  explicit Saver(comm::Communicator& comm);
  // Waits for the save under way: after an error, abort the communicator first.
  ~Saver();

  // Returns when the checkpoint is committed. Throws on all ranks where one of them fails; earlier checkpoints are as they were then.
  void save(const SaveRequest& request, const std::vector<checkpoint::Piece>& pieces);
  // Returns once the pieces are copied, and writes and commits the copies in a thread. No save may be under way.
  void begin(SaveRequest request, std::vector<checkpoint::Piece> pieces);
  bool under_way() const { return running_.valid(); }
  // How the save that was begun has ended: no value where it goes on, where that was said before, or where none was begun.
  std::optional<SaveOutcome> poll();
  // The same, when it has ended.
  std::optional<SaveOutcome> wait();

 private:
  void write(const SaveRequest& request, const std::vector<checkpoint::Piece>& pieces) const;

  comm::Communicator& comm_;
  // Of its own: a step's exchanges go on beside those of a save.
  const comm::Group group_;
  // Copies of the pieces; their pages are given back at the end of each save.
  at::Tensor staging_;
  std::future<SaveOutcome> running_;
};

}  // namespace tessera::train
