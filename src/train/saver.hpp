// Internal: checkpoints of all ranks together, in place or beside the steps that follow.
#pragma once

#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "base/file_system.hpp"
#include "base/units.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/comm.hpp"

namespace tessera::train {

// How a save has ended; equal on all ranks.
struct SaveOutcome {
  std::int64_t steps = 0;      // had been made when it began
  std::optional<Error> error;  // why there is no checkpoint of them
  Seconds stopped;             // in which this rank did not train: copying what steps were about to change
};

struct SaveRequest {
  FileSystem* files = nullptr;
  std::filesystem::path folder;          // runs/NAME/checkpoints
  std::optional<std::int64_t> keep;      // so many checkpoints stay; no value: all of them
  std::optional<checkpoint::Best> best;  // to be kept beside them
  checkpoint::State state;
  std::function<void()> beside = {};  // what belongs to it and is not this rank's pieces is whole once this returns; on the save's thread
};

// Not thread-safe; all ranks call the same members in the same order, but for keep() and poll(). The communicator must outlive it, and the
// request's files a save that goes on.
class Saver {
 public:
  explicit Saver(comm::Communicator& comm);
  // Waits for the save under way: after an error, abort the communicator first.
  ~Saver();

  // Returns when the checkpoint is committed. Throws on all ranks where one of them fails; earlier checkpoints are as they were then.
  void save(const SaveRequest& request, const std::vector<checkpoint::Piece>& pieces);
  // Writes and commits in a thread, and returns at once. `pieces` are those of each bucket. No save may be under way.
  void begin(SaveRequest request, std::vector<std::vector<checkpoint::Piece>> pieces);
  // Returns once the bucket may be changed: what of it is not written yet is copied.
  void keep(int bucket);
  bool under_way() const { return running_.valid(); }
  // How the save that was begun has ended: no value where it goes on, where that was said before, or where none was begun.
  std::optional<SaveOutcome> poll();
  // The same, when it has ended.
  std::optional<SaveOutcome> wait();

 private:
  using Pieces = std::vector<checkpoint::Piece>;
  void write(const SaveRequest& request, const Pieces& pieces, checkpoint::LivePieces* live) const;

  comm::Communicator& comm_;
  // A group of its own, because a step's exchanges go on beside those of a save.
  const comm::Group group_;
  std::vector<std::size_t> ends_;  // by bucket, among the pieces of the save under way
  std::unique_ptr<checkpoint::LivePieces> live_;
  Seconds stopped_;
  std::future<SaveOutcome> running_;
};

}  // namespace tessera::train
