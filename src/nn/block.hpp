// Blocks as tensors run them: forward, backward for the inputs, backward for the weights. The trainer knows blocks by this
// interface and the registry only.
//
// A block computes its gradients itself (no autograd graph), so that what is held between forward and backward is exactly
// what model::cost_of says, and so that a schedule may delay the weight half of the backward pass.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/comm.hpp"
#include "model/model.hpp"

namespace tessera::nn {

class RouteCounts;  // nn/route_counts.hpp

using Tensors = std::vector<at::Tensor>;

// One parameter of one block as this rank holds it (its tensor-parallel shard).
struct Parameter {
  const model::ParameterSpec* spec = nullptr;
  std::string name;  // global, as in the checkpoint
  at::Tensor value;  // in the precision of computation, contiguous, shard's shape; padding is zeros
  at::Tensor grad;   // f32, contiguous, same shape; the backward pass adds to it, and zeros to padding
};

// Samples of one micro-batch: tensors whose first dimension is the batch, by the names that the data gives them. Those of text, int64
// [batch, seq], of this rank's part of each sequence where context parallelism cuts it:
//   tokens           and where the data tells them apart token_types, of each the part of its sample that it stands in (BERT)
//   targets          a target of -1 is not counted
//   positions        each token's position in its document, which begins where it is 0; attention stays within documents. Without them
//                    each sample is one document.
//   whole_positions  where context parallelism cuts sequences that have positions: those of the whole sequences
struct Batch {
  std::map<std::string, at::Tensor> tensors;
  // The place of the first one in the step's batch, and a seed of the step.
  std::int64_t first_sample = 0;
  std::uint64_t seed = 0;
  // Where samples are placed (train/placement.hpp), which sample of the batch stands in each place; null: that of the same number.
  std::shared_ptr<const std::vector<std::int64_t>> numbers = {};

  // The sample's number in the batch, wherever it is placed: what random masks depend on, beside the seed and the block.
  std::int64_t number(std::int64_t row) const {
    return numbers ? numbers->at(static_cast<std::size_t>(first_sample + row)) : first_sample + row;
  }

  // Throws invalid_config, which says what there is, where the data has no such tensor.
  const at::Tensor& at(const std::string& name) const;
  // Undefined where there is none.
  at::Tensor find(const std::string& name) const;
};

Batch moved_to(at::Device device, Batch batch);

// Keys and values of the positions seen so far, one per transformer layer: [batch, kv_heads, capacity, head_dim].
struct KeyValueCache {
  at::Tensor keys;
  at::Tensor values;
};

// On the clock of this host.
struct Interval {
  Seconds begin;
  Seconds end;
};

// What is common to one pass of one micro-batch through all blocks of a rank.
struct Pass {
  const Batch* batch = nullptr;
  model::Precision precision = model::Precision::f32;
  // Forward: false when no backward pass follows (evaluation, generation): nothing is saved.
  bool training = true;
  // Whether activations (dropout), and tokens beyond what an expert takes, are dropped where the model says so: in all passes of training,
  // also in those that save nothing.
  bool drops = false;
  int block = 0;  // its index in the model
  // Multiplies the summed token losses: 1 / (counted targets of the global batch), so that gradients add up to those of the mean.
  double loss_scale = 1.0;
  // 1 / (samples of the global batch): multiplies what is lost by a sample and not by a token (balance of experts).
  double sample_scale = 1.0;
  // Tensor-parallel peers; empty when the degree is 1. All of them make the same calls in the same order.
  comm::Group tensor_group;
  // The ranks among which the experts are spread; empty when the degree is 1. All of them make the same passes in the same order, each with
  // samples of its own.
  comm::Group expert_group;
  // The ranks that hold the parts of each sequence (nn/sequence.hpp); empty when the degree is 1. All of them make the same passes in the
  // same order. Blocks take and return [batch, seq / peers, ...].
  comm::Group context_group;
  model::ContextKind context = model::ContextKind::ring;
  // Data-parallel replicas, for blocks whose passes exchange over them (model::exchanges_over_replicas); empty where none do. All of them
  // make the same passes in the same order, with samples of their own, not as many on each.
  comm::Group replica_group;
  // Sequence parallelism (Korthikanti et al. 2022): what tensor parallelism leaves whole is cut among the peers. Of the batch * seq rows of
  // activations, which are in order, each rank holds as many consecutive ones: blocks take and pass on [batch, seq / peers, ...].
  bool sequence_parallel = false;
  // Selective recomputation: attention's results are not kept, and the backward pass computes them again.
  bool recompute_attention = false;
  // Where the times of exchanges among them go, when it is not null.
  std::vector<Interval>* exchanges = nullptr;
  // Where routers count what they choose; null: nowhere.
  RouteCounts* routes = nullptr;
  // Generation: position of the first token, and this block's cache (nullptr otherwise).
  std::int64_t position = 0;
  KeyValueCache* cache = nullptr;
};

// What a block keeps from forward to backward for one micro-batch, and from backward_input to backward_weight.
struct Saved {
  Tensors tensors;
};

// One block of one rank. Not thread-safe; different blocks may run at once.
class Block {
 public:
  virtual ~Block() = default;

  // The parameters in the spec's order. The trainer allocates them back to back in a flat buffer per bucket (values and
  // gradients alike), so that a block may treat neighbours (q, k, v; gate, up) as one matrix when they are adjacent.
  // Called once before the first pass, and again if the trainer moves its buffers.
  virtual void bind(std::vector<Parameter> parameters) = 0;
  virtual const std::vector<Parameter>& parameters() const = 0;

  // inputs -> outputs, by the spec's lists ([batch, ...spec shape]; less of the sequence where the pass cuts it). The first block takes no
  // inputs and reads the batch; the last one returns {sum of losses f32 [], how many they are i64 []} (not scaled); with training == false
  // behind them a classifier of how many its largest logit is right (i64 []), and a model of clicks the logits and the labels of those that
  // count (f32 [2, counted]); or, with training == false and no targets in the batch, {logits}.
  //
  // A loss block in training computes the gradient of the logits here, so that logits are never kept, and adds to its
  // projection's grad at once. So: pass.loss_scale is already set, grads are zeroed before the first forward pass of a
  // step, and every forward pass with training == true is followed by exactly one backward pass. Whoever recomputes runs
  // the first of the two forward passes with training == false.
  //
  // Passes run within a WithoutAutograd (nn/autograd.hpp): a block that calls torch::autograd::grad says WithAutograd around what it is to
  // differentiate.
  virtual Tensors forward(const Tensors& inputs, Saved& saved, const Pass& pass) = 0;

  // Gradients of the outputs -> gradients of the inputs. Leaves in `saved` what backward_weight needs and drops the rest.
  // The loss block is given no gradients and starts from pass.loss_scale.
  virtual Tensors backward_input(const Tensors& output_grads, Saved& saved, const Pass& pass) = 0;
  // Adds to every parameter's grad, and drops what is left in `saved`.
  virtual void backward_weight(Saved& saved, const Pass& pass) = 0;
};

struct BlockPlacement {
  int tensor_rank = 0;
  int tensor_size = 1;
  int expert_rank = 0;
  int expert_size = 1;  // divides the number of experts
  // Experts are not cut by tensor parallelism: each stands whole on one rank, to which tensor-parallel ranks send a part of the tokens
  // each.
  bool whole_experts = false;
  // Where the block's parameters and activations lie; the samples of a batch as well.
  at::Device device = at::kCPU;
  // That of a parameter.
  BlockPlacement of(const model::ParameterSpec& spec) const {
    if (!whole_experts || spec.expert_dim < 0) return *this;
    return {.tensor_rank = 0, .tensor_size = 1, .expert_rank = expert_rank, .expert_size = expert_size, .device = device};
  }
};

// The shape of this rank's shard of a parameter, the same on all ranks: a dimension that tensor parallelism does not divide is padded at
// the end of the last rank's shard.
std::vector<std::int64_t> shard_shape(const model::ParameterSpec& spec, const BlockPlacement& placement);

// Factories by BlockSpec::kind. Registration happens before training starts; not thread-safe. Throws invalid_config where there is one of
// this kind.
using BlockFactory = std::function<std::unique_ptr<Block>(const model::BlockSpec&, const BlockPlacement&)>;
void register_block(const std::string& kind, BlockFactory factory);
// Throws not_found, naming the known kinds.
std::unique_ptr<Block> make_block(const model::BlockSpec& spec, const BlockPlacement& placement);

// Fills `value` (a shard, f32) with the parameter's initial values, and padding with zeros. They depend on (seed, name) and the
// element's place in the whole parameter alone, so every plan starts from the same weights.
void initialize(const model::ParameterSpec& spec, const std::string& name, std::uint64_t seed, const BlockPlacement& placement,
                at::Tensor& value);

}  // namespace tessera::nn
