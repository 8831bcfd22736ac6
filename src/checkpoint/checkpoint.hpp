// Checkpoints: saved by all ranks together, whole or not at all, and loaded under any plan.
//
// On disk, in runs/NAME/checkpoints/:
//
//   step-000050/manifest.json             what follows, with the size and XXH3-128 of every piece; its own digest stands at its end
//   step-000050/rank-00003.safetensors    the pieces that rank 3 held
//   step-000060.tmp/                      a save under way, or one that was interrupted: never read
//   step-000060.damaged/                  set aside by a run that went on from an earlier one: never read
//   best.json                             where a run keeps it: the step with the lowest validation loss
//
// A save writes into the .tmp folder, syncs every file, writes the manifest last, renames the folder and syncs its parent.
// So an interruption at any point leaves the earlier checkpoints as they were, and either the whole new one or none.
#pragma once

#include <ATen/core/Tensor.h>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/file_system.hpp"
#include "checkpoint/best.hpp"
#include "checkpoint/state.hpp"

namespace tessera::checkpoint {

// A piece of one named global tensor as one rank holds it: the tensor is first cut by tensor parallelism along split_dim
// into split_size parts of ceil(extent / split_size) places, of which this is split_index; the last ones are smaller where
// split_size does not divide the extent, for padding is not part of the tensor. Of that part, flattened in row-major order, the
// elements [flat_begin, flat_end) follow.
struct Piece {
  std::string name;
  std::vector<std::int64_t> shape;  // of the global tensor
  int split_dim = -1;               // -1: not cut
  int split_index = 0;
  int split_size = 1;
  std::int64_t flat_begin = 0;
  std::int64_t flat_end = 0;
  at::Tensor data;  // 1-d, contiguous, on the CPU, f32, bf16 or i64; flat_end - flat_begin elements
};

// Pieces that are written while their owner goes on with them. It says before it changes some, and what of those is not written yet is
// copied first: a save that is done before that costs neither memory nor time. One thread writes, one other keeps.
class LivePieces {
 public:
  // The tensors may be views of what the owner goes on with.
  explicit LivePieces(std::vector<Piece> pieces);

  // For the owner: returns once the pieces [first, last) may be changed.
  void keep(std::size_t first, std::size_t last);
  // For the writer, from the first byte of each piece to its last: calls use() with these bytes. No piece is copied during the call.
  void read(std::size_t piece, std::size_t begin, std::size_t bytes, const std::function<void(std::span<const std::byte>)>& use);

 private:
  std::mutex mutex_;  // guards what follows; no tensor is changed or copied while reading_
  std::condition_variable changed_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> read_;  // bytes
  std::vector<bool> copied_;
  bool reading_ = false;
  bool copying_ = false;
};

// One save of one rank, in two phases: every rank calls write(), then, after a barrier, rank 0 calls commit().
// Not thread-safe. FileSystem must outlive the Writer.
class Writer {
 public:
  // `folder` is runs/NAME/checkpoints; it is created where missing. Touches no disk yet.
  Writer(FileSystem& files, std::filesystem::path folder, std::int64_t step, int rank, int world_size);

  // This rank's pieces, into step-NNNNNN.tmp/; on the disk when it returns. The data is hashed and written in place, without
  // a copy. Over all ranks each element of a tensor stands in exactly one piece, and all pieces of a tensor are cut along
  // the same dimension into the same number of parts. Throws Error(io), for a full disk too; the earlier checkpoints are
  // untouched then, and the .tmp folder, in which other ranks may be writing, is there until abandon().
  void write(const std::vector<Piece>& pieces);
  // The same for live pieces; `pieces` are those that `live` was made of.
  void write(const std::vector<Piece>& pieces, LivePieces& live);

  // Rank 0, once every rank has written: checks that the pieces of all ranks make up whole tensors, and makes the
  // checkpoint visible. A complete checkpoint of the same step is replaced. Throws Error(io or corrupt); then the .tmp
  // folder is removed, and the earlier checkpoints are untouched.
  void commit(const State& state);

  // Rank 0, where some rank failed to write, once all of them have ended: removes the .tmp folder.
  void abandon() noexcept;

 private:
  void write_shard(const std::vector<Piece>& pieces, LivePieces* live);
  void write_or_explain(const std::vector<Piece>& pieces, LivePieces* live);
  void publish(const State& state);
  std::filesystem::path shard(const char* extension) const;

  FileSystem& files_;
  const std::filesystem::path folder_;
  const std::filesystem::path temporary_;
  const std::int64_t step_;
  const int rank_;
  const int world_size_;
};

// The folder of a step: "step-000050".
std::filesystem::path step_folder(const std::filesystem::path& folder, std::int64_t step);
// Steps of the committed checkpoints, ascending; a folder that does not exist has none. Not checked.
std::vector<std::int64_t> list(const std::filesystem::path& folder);
// The newest checkpoint whose every byte is right; all who read a checkpoint without saying its step take this one. Those that are
// damaged are passed over with a warning in the log.
std::optional<std::filesystem::path> latest(const std::filesystem::path& folder);
// The checkpoint of this step, every byte of which is right, or the latest one. Throws not_found, naming what there is; corrupt with what
// is wrong with the one of this step, or with the newest where all are damaged.
std::filesystem::path find(const std::filesystem::path& folder, std::optional<std::int64_t> step = {});
// Renames checkpoints of later steps than `step` to step-NNNNNN.damaged, which nobody reads, with a warning: a run that goes on from `step`
// because those are damaged makes these steps anew.
void set_aside_after(FileSystem& files, const std::filesystem::path& folder, std::int64_t step);
// What best.json names, where it is there and that checkpoint is. Throws corrupt when it cannot be read.
std::optional<Best> best(const std::filesystem::path& folder);
// Writes best.json, whole or not at all; prune() leaves that step from then on. Does nothing when there is no checkpoint of the step.
void set_best(FileSystem& files, const std::filesystem::path& folder, const Best& best);
// Removes what interrupted saves and removals left behind. At the start of a run, by one process, and by prune().
void clean(FileSystem& files, const std::filesystem::path& folder);
// Keeps the newest `keep` checkpoints, at least one, of those whose files and headers are right, and the best one, and removes the other
// older ones. No save may be under way.
void prune(FileSystem& files, const std::filesystem::path& folder, std::int64_t keep);

struct TensorInfo {
  std::string name;
  std::vector<std::int64_t> shape;
  at::ScalarType dtype;
};

// A committed checkpoint. Every piece of data is checked against its digest before the first element of it is used, once
// per Reader. Not thread-safe; any number of processes may read at once.
class Reader {
 public:
  // Checks the manifest's digest and every file's size and header, in milliseconds. Throws not_found without a manifest, or corrupt.
  explicit Reader(std::filesystem::path step_folder);
  ~Reader();
  Reader(Reader&&) noexcept;

  const State& state() const;
  bool has(const std::string& name) const;
  std::vector<TensorInfo> tensors() const;                  // by name
  const TensorInfo& tensor(const std::string& name) const;  // throws not_found, naming the nearest

  // A whole global tensor, assembled. Throws corrupt with the file, the tensor and the offset.
  at::Tensor read(const std::string& name) const;
  // Fills target.data (allocated when undefined) from whatever pieces overlap with it, however they were cut. Exact. Throws
  // corrupt, or invalid_config when the stored shape or type is another.
  void read_piece(Piece& target) const;
  // Every byte. Throws corrupt for the first one that is wrong.
  void verify() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::checkpoint
