// The parameters of one rank: flat buffers per bucket for values, gradients, master weights and optimizer state.
#pragma once

#include <ATen/core/Tensor.h>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "model/job.hpp"
#include "model/model.hpp"
#include "nn/block.hpp"
#include "nn/memory.hpp"
#include "program/program.hpp"

namespace tessera::train {

// The buffers of one bucket. In f32 `master` is this rank's part of `values`, except under ZeRO-3.
struct BucketState {
  at::Tensor values;       // [count], precision of computation; under ZeRO-3 they take memory where they are gathered
  at::Tensor grads;        // [count], f32; under ZeRO-2 and 3 they take memory where passes add to them
  at::Tensor fresh_grads;  // [count], f32, where gradients are used a step late: what passes add to, while `grads` are reduced
  at::Tensor
      whole_grads;  // of a parameter that stages cut differently (Bucket::whole): zeros but for `grads`, which are in their place there
  at::Tensor shard_values;  // [shard count]: this rank's part of `values`, or under ZeRO-3 what it is gathered from
  at::Tensor shard_grads;   // [shard count]: this rank's part of `grads`, or under ZeRO-2 and 3 the sum of those that were reduced
  at::Tensor master;        // [shard count], f32
  at::Tensor exp_avg;       // [shard count]; for SGD the momentum, or undefined
  at::Tensor exp_avg_sq;    // [shard count]; undefined for SGD
  std::int64_t shard_begin = 0;
  std::int64_t shard_end = 0;
};

// Which pieces of a bucket a rank names.
enum class Holds {
  own,  // such that each element of the whole job is in exactly one rank's pieces: those of a checkpoint
  all   // also what other ranks name, or hold copies of
};

// Owns the buffers and the blocks bound to them. Not thread-safe.
class Store {
 public:
  Store(const model::ModelSpec& model, const program::Program& program, model::Precision precision, const model::OptimizerSpec& optimizer,
        at::Device device = at::kCPU);

  // Initial values from the seed alone: equal under every plan.
  void initialize(std::uint64_t seed);
  void zero_grads();
  void zero_grads(int bucket);
  // Where gradients are used a step late: those of the step that has ended become the bucket's `grads`.
  void keep_for_next_step(int bucket);

  // Gives back the memory of the values of a bucket under ZeRO-3, and of its gradients under ZeRO-2 and 3.
  void release_values(int bucket);
  void release_grads(int bucket);
  // Takes it again: values before they are gathered, and gradients, which are zeros then, before a pass of one of their blocks.
  void hold_values(int bucket) { nn::hold(buckets_.at(bucket).values); }
  void hold_grads(int block);

  // This rank's part of the sum over all ranks: each element of the model counts on exactly one rank.
  double squared_norm() const;
  double squared_norm(int bucket) const;
  // Steps `bucket`; grad_scale multiplies the gradients first. `step` is 1-based.
  void step(int bucket, const model::OptimizerSpec& optimizer, double lr, double grad_scale, std::int64_t step);

  at::Device device() const { return device_; }
  nn::Block& block(int index) { return *blocks_.at(index); }
  BucketState& bucket(int index) { return buckets_.at(index); }

  // What this rank contributes to a checkpoint: each element of the whole job is in exactly one rank's pieces, and no padding.
  std::vector<checkpoint::Piece> pieces() const;
  // Those of one bucket, in host memory; views of it, but for what is padded there and what lies on another device.
  std::vector<checkpoint::Piece> pieces(int bucket, Holds holds = Holds::own) const;
  int bucket_count() const { return static_cast<int>(buckets_.size()); }
  // The gradients likewise, named "<parameter>.grad".
  std::vector<checkpoint::Piece> gradient_pieces() const;
  // Fills master weights and, if `with_optimizer`, the optimizer state; then the values of computation.
  void load(const checkpoint::Reader& reader, bool with_optimizer);
  // Loads from anywhere: `fill` is called once, with all pieces to be filled: those of the parameters in `wanted`, or of all if it is
  // empty.
  using Fill = std::function<void(std::vector<checkpoint::Piece>&)>;
  void load(const Fill& fill, bool with_optimizer, const std::set<std::string>& wanted = {});

 private:
  struct Segment;  // a run of one parameter's elements within this rank's shard of a bucket

  const model::ParameterSpec& spec_of(const program::BucketEntry& entry) const;
  std::string name_of(const program::BucketEntry& entry) const;
  nn::BlockPlacement placement_of(int block) const;
  nn::BlockPlacement placement_of(const program::BucketEntry& entry) const;
  // False for the copy of a parameter that another stage, or another tensor-parallel rank, owns.
  bool owns(const program::BucketEntry& entry) const;
  std::vector<Segment> segments(int bucket) const;
  // Adds the bucket's gradients whose squares this rank counts in the gradient norm.
  void add_counted_grads(int bucket, nn::Tensors& counted) const;
  checkpoint::Piece piece(const Segment& segment, const std::string& suffix, const at::Tensor& flat, std::int64_t flat_begin) const;
  void add_piece(std::vector<checkpoint::Piece>& out, const Segment& segment, const std::string& suffix, const at::Tensor& flat,
                 std::int64_t flat_begin) const;
  void bind_blocks();
  // All values of a bucket, f32, this rank's part of them as exact as they are held: set_values() of them changes nothing.
  at::Tensor present_values(int bucket) const;
  // From all values of a bucket, f32.
  void set_values(int bucket, const at::Tensor& whole);

  const model::ModelSpec model_;
  const program::Program program_;
  const model::Precision precision_;
  const at::Device device_;
  std::vector<model::BlockInstance> instances_;
  std::map<int, std::unique_ptr<nn::Block>> blocks_;  // by index in the model
  std::vector<BucketState> buckets_;
  std::map<int, std::set<int>> buckets_of_;  // by block: those whose gradients are released
};

}  // namespace tessera::train
