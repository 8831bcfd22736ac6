#include "train/executor.hpp"

#include <ATen/ops/empty.h>
#include <algorithm>
#include <set>

#include "base/clock.hpp"

namespace tessera::train {

using program::Instruction;
using program::Op;

namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

bool is_loss(const model::BlockSpec& spec) { return !spec.outputs.empty() && spec.outputs.front().name == "loss"; }

// What communication waits in line with.
std::pair<int, Op> stream_of(const Instruction& instruction) {
  return instruction.group >= 0 ? std::pair(-1 - instruction.group, Op::forward) : std::pair(instruction.peer, instruction.op);
}

std::uint32_t tag_of(const Instruction& instruction, std::size_t tensor) {
  const bool gradient = instruction.op == Op::send_gradient || instruction.op == Op::receive_gradient;
  return static_cast<std::uint32_t>(tensor * 2 + (gradient ? 1 : 0));
}

comm::DataType type_of(model::Precision precision) {
  return precision == model::Precision::f32 ? comm::DataType::f32 : comm::DataType::bf16;
}

}  // namespace

Executor::Executor(program::Program program, const model::ModelSpec& model, model::Precision precision, Store& store,
                   comm::Communicator& comm)
    : program_(std::move(program)), model_(model), precision_(precision), instances_(model_.blocks()), store_(store), world_(comm.world()) {
  for (const auto& group : program_.groups)
    groups_.push_back(comm.group(group.ranks, group.name + (program_.training ? "" : ".evaluation")));
}

void Executor::settle() noexcept {
  for (const auto* all : {&previous_, &handles_})
    for (const auto& handles : *all)
      for (const auto& handle : handles) {
        try {
          handle.wait();
        } catch (const std::exception&) {  // who lost a peer hears of it elsewhere
        }
      }
}

void Executor::begin() {
  const std::size_t count = program_.instructions.size();
  activations_.clear();
  gradients_.clear();
  saved_.clear();
  started_.assign(count, false);
  executed_.assign(count, false);
  previous_ = std::move(handles_);
  previous_begins_ = std::move(begins_);
  handles_.assign(count, {});
  begins_.assign(count, Seconds(0));
  buffers_.assign(count, {});
  pending_.clear();
  reducing_.clear();
  scalars_.assign(4, 0.0);
  norm_ = {};
}

Scalars Executor::run(const std::vector<nn::Batch>& batches, double loss_scale, bool wish_to_stop, const Step& step) {
  const std::size_t count = program_.instructions.size();
  spans_.clear();
  late_spans_.clear();
  begin();
  wish_to_stop_ = wish_to_stop ? 1 : 0;
  const auto left_out = [&](const Instruction& instruction) { return instruction.finishes_previous && !unfinished_; };
  // What can go beside computing starts as soon as it may, wherever it stands in the program.
  for (std::size_t i = 0; i < count; ++i) {
    if (left_out(program_.instructions[i]))
      executed_[i] = started_[i] = true;
    else if (!program::is_compute(program_.instructions[i].op))
      pending_.push_back(static_cast<int>(i));
  }
  start_ready();
  for (std::size_t i = 0; i < count; ++i) {
    if (!program::is_compute(program_.instructions[i].op) || executed_[i]) continue;
    wait_for_previous(static_cast<int>(i));
    for (int dependency : program_.instructions[i].after) complete(dependency);
    const Seconds begin = real_clock().now();
    std::vector<nn::Interval> exchanges = compute(static_cast<int>(i), batches, loss_scale, step);
    executed_[i] = true;
    spans_.push_back({static_cast<int>(i), begin, real_clock().now(), std::move(exchanges)});
    start_ready();
  }
  for (std::size_t i = 0; i < count; ++i) {
    if (goes_on(static_cast<int>(i)))
      ensure_started(static_cast<int>(i));
    else
      complete(static_cast<int>(i));
  }
  for (InstructionSpan& span : communication_spans(handles_, begins_, false)) spans_.push_back(std::move(span));
  if (unfinished_) late_spans_ = communication_spans(previous_, previous_begins_, true);
  unfinished_ = program_.delayed;
  return {scalars_[0], scalars_[1], scalars_[2], scalars_[3]};
}

// Of communication that is over: of the run's own, or of what went on beyond it.
std::vector<InstructionSpan> Executor::communication_spans(const Handles& handles, const std::vector<Seconds>& begins, bool late) const {
  std::vector<InstructionSpan> out;
  std::map<std::pair<int, Op>, Seconds> free_from;  // by stream
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (goes_on(static_cast<int>(i)) != late || handles[i].empty()) continue;
    InstructionSpan span{static_cast<int>(i), begins[i], begins[i]};
    for (const auto& handle : handles[i]) span.end = std::max(span.end, begins[i] + handle.elapsed());
    Seconds& free = free_from[stream_of(program_.instructions[i])];
    span.begin = std::min(std::max(span.begin, free), span.end);
    free = std::max(free, span.end);
    out.push_back(std::move(span));
  }
  return out;
}

// Into the next run.
bool Executor::goes_on(int index) const {
  const Op op = program_.instructions[index].op;
  return program_.delayed && (op == Op::reduce_tied || op == Op::reduce_gradients || op == Op::reduce_shards);
}

void Executor::wait_for_previous(int index) {
  if (!unfinished_) return;
  for (const int dependency : program_.instructions[index].after_previous)
    for (const auto& handle : previous_[dependency]) handle.wait();
}

void Executor::wait_for_exchange() {
  for (std::size_t i = 0; i < handles_.size(); ++i)
    if (goes_on(static_cast<int>(i)))
      for (const auto& handle : handles_[i]) handle.wait();
}

double Executor::finish(const Step& step) {
  if (!unfinished_) return 0;
  wait_for_exchange();
  late_spans_ = communication_spans(handles_, begins_, true);
  begin();
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& instruction = program_.instructions[i];
    if (!instruction.finishes_previous) continue;
    wait_for_previous(static_cast<int>(i));
    if (instruction.op == Op::optimizer_step)
      step_bucket(instruction, step);
    else
      start(static_cast<int>(i));
  }
  for (const auto& handles : handles_)
    for (const auto& handle : handles) handle.wait();
  unfinished_ = false;
  return scalars_[0];
}

void Executor::step_bucket(const Instruction& instruction, const Step& step) {
  if (instruction.finishes_previous) scalars_[0] += store_.squared_norm(instruction.bucket);
  step(instruction.bucket, {scalars_[0], scalars_[1], scalars_[2], scalars_[3]});
}

std::vector<nn::Interval> Executor::compute(int index, const std::vector<nn::Batch>& batches, double loss_scale, const Step& step) {
  const Instruction& instruction = program_.instructions[index];
  if (instruction.op == Op::optimizer_step) {
    step_bucket(instruction, step);
    return {};
  }
  std::vector<nn::Interval> exchanges;
  nn::Pass pass;
  pass.exchanges = &exchanges;
  pass.batch = &batches.at(instruction.micro_batch);
  pass.precision = precision_;
  pass.training = program_.training;
  pass.loss_scale = loss_scale;
  if (program_.tensor_group >= 0) pass.tensor_group = group(program_.tensor_group);
  if (instruction.op == Op::forward)
    forward(instruction, pass);
  else
    backward(instruction, pass);
  for (const int bucket : instruction.releases) store_.release_values(bucket);
  return exchanges;
}

// What the block's strategy says of its passes.
void Executor::enter(int block, nn::Pass& pass) const {
  const plan::Strategy& strategy = program_.strategy_of(block);
  pass.sequence_parallel = strategy.sequence_parallel;
  pass.recompute_attention = strategy.recompute == model::Recompute::selective;
}

void Executor::forward(const Instruction& instruction, nn::Pass& pass) {
  const int m = instruction.micro_batch;
  nn::Tensors tensors;
  if (auto inputs = activations_.find({m, instruction.first_block}); inputs != activations_.end()) tensors = inputs->second;
  for (int b = instruction.first_block; b < instruction.last_block; ++b) {
    const bool recompute = program_.training && program_.recomputes(b);
    nn::Saved saved;
    enter(b, pass);
    pass.training = program_.training && !recompute;
    // Only a recomputed block needs its inputs again.
    if (recompute) activations_[{m, b}] = tensors;
    tensors = store_.block(b).forward(tensors, saved, pass);
    if (program_.training && !recompute) saved_[{m, b}] = std::move(saved);
    if (!recompute) activations_.erase({m, b});
    if (is_loss(*instances_[b].spec)) {
      // Tensor-parallel peers hold the same sums; they count once.
      if (program_.tp_index == 0) {
        scalars_[1] += tensors.at(0).item<float>();
        scalars_[2] += static_cast<double>(tensors.at(1).item<std::int64_t>());
      }
      return;
    }
  }
  activations_[{m, instruction.last_block}] = std::move(tensors);
}

void Executor::backward(const Instruction& instruction, nn::Pass& pass) {
  const int m = instruction.micro_batch;
  nn::Tensors grads;
  if (auto found = gradients_.find({m, instruction.last_block}); found != gradients_.end()) {
    grads = std::move(found->second);
    gradients_.erase(found);
  }
  for (int b = instruction.last_block - 1; b >= instruction.first_block; --b) {
    nn::Block& block = store_.block(b);
    nn::Saved saved;
    enter(b, pass);
    // A weight half takes what the input half, which ran before, has computed again and left.
    if (program_.recomputes(b) && instruction.op != Op::backward_weight) {
      pass.training = true;
      block.forward(activations_.at({m, b}), saved, pass);
      activations_.erase({m, b});
    } else {
      saved = std::move(saved_.at({m, b}));
      saved_.erase({m, b});
    }
    if (instruction.op == Op::backward_weight) {
      block.backward_weight(saved, pass);
      continue;
    }
    grads = block.backward_input(grads, saved, pass);
    if (instruction.op == Op::backward)
      block.backward_weight(saved, pass);
    else
      saved_[{m, b}] = std::move(saved);
  }
  if (instruction.op != Op::backward_weight && instruction.first_block > 0) gradients_[{m, instruction.first_block}] = std::move(grads);
}

bool Executor::done(int index) const {
  if (program::is_compute(program_.instructions[index].op)) return executed_[index];
  if (!started_[index]) return false;
  return std::all_of(handles_[index].begin(), handles_[index].end(), [](const comm::Handle& handle) { return handle.done(); });
}

// Gradients that are reduced into a shard need no memory any more.
void Executor::release_reduced() {
  std::erase_if(reducing_, [&](int index) {
    if (!done(index)) return false;
    store_.release_grads(program_.instructions[index].bucket);
    return true;
  });
}

void Executor::start_ready() {
  release_reduced();
  std::set<std::pair<int, Op>> blocked;  // a channel whose earlier communication has not started
  std::erase_if(pending_, [&](int index) {
    const Instruction& instruction = program_.instructions[index];
    const std::pair<int, Op> channel = stream_of(instruction);
    const bool ready =
        !blocked.contains(channel) && std::all_of(instruction.after.begin(), instruction.after.end(), [&](int d) { return done(d); });
    if (!ready) {
      blocked.insert(channel);
      return false;
    }
    start(index);
    return true;
  });
}

void Executor::start(int index) {
  handles_[index].clear();
  handles_[index].push_back(communicate(index));
  // Handles count from here: what a message or a norm is made of has been computed.
  begins_[index] = real_clock().now();
  started_[index] = true;
}

// What computes before `index` has run, so that the first pending one, which is not after it, waits for communication alone, and
// waiting for that always makes progress.
void Executor::complete(int index) {
  if (program::is_compute(program_.instructions[index].op)) {
    ensure(executed_[index], "a compute instruction was waited for before its turn");
    return;
  }
  ensure_started(index);
  for (const auto& handle : handles_[index]) handle.wait();
  buffers_[index].clear();
  release_reduced();
}

void Executor::ensure_started(int index) {
  start_ready();
  while (!started_[index]) {
    for (int dependency : program_.instructions[pending_.front()].after)
      for (const auto& handle : handles_[dependency]) handle.wait();
    start_ready();
  }
}

at::Tensor Executor::receive_buffer(const model::TensorSpec& tensor, const plan::Strategy& strategy) const {
  std::vector<std::int64_t> shape = {program_.micro_batch_size};
  shape.insert(shape.end(), tensor.shape.begin(), tensor.shape.end());
  if (strategy.sequence_parallel) shape.at(1) /= strategy.tp;
  return at::empty(shape, at::TensorOptions().dtype(precision_ == model::Precision::f32 ? at::kFloat : at::kBFloat16));
}

comm::Handle Executor::send(int index, const nn::Tensors& tensors) {
  const Instruction& instruction = program_.instructions[index];
  comm::Handle last;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    buffers_[index].push_back(tensors[t].contiguous());
    last = world_.send(bytes_of(buffers_[index].back()), instruction.peer, tag_of(instruction, t));
    if (t + 1 < tensors.size()) handles_[index].push_back(last);
  }
  return last;
}

comm::Handle Executor::receive(int index, nn::Tensors& tensors) {
  const Instruction& instruction = program_.instructions[index];
  comm::Handle last;
  const auto& specs = instances_[instruction.first_block].spec->inputs;
  // Gradients are of the first block of the next stage, activations for that of this one.
  const int own = instruction.op == Op::receive_gradient ? instruction.first_block - 1 : instruction.first_block;
  for (std::size_t t = 0; t < specs.size(); ++t) {
    tensors.push_back(receive_buffer(specs[t], program_.strategy_of(own)));
    last = world_.receive(bytes_of(tensors.back()), instruction.peer, tag_of(instruction, t));
    if (t + 1 < specs.size()) handles_[index].push_back(last);
  }
  return last;
}

comm::Handle Executor::communicate(int index) {
  const Instruction& instruction = program_.instructions[index];
  const Key key{instruction.micro_batch, instruction.first_block};
  switch (instruction.op) {
    case Op::send_activation: {
      const auto handle = send(index, activations_.at(key));
      activations_.erase(key);
      return handle;
    }
    case Op::receive_activation: return receive(index, activations_[key]);
    case Op::send_gradient: {
      const auto handle = send(index, gradients_.at(key));
      gradients_.erase(key);
      return handle;
    }
    case Op::receive_gradient: return receive(index, gradients_[key]);
    case Op::reduce_norm:
      if (program_.training && !program_.delayed) {
        norm_.begin = real_clock().now();
        scalars_[0] = store_.squared_norm();
        norm_.end = real_clock().now();
      }
      scalars_[3] = wish_to_stop_;
      if (instruction.group < 0) return {};
      return group(instruction.group).all_reduce(scalars_.data(), scalars_.size(), comm::DataType::f64);
    default: break;
  }
  const program::Bucket& bucket = program_.buckets[instruction.bucket];
  BucketState& state = store_.bucket(instruction.bucket);
  const auto shard = static_cast<std::size_t>(bucket.shard_count());
  const comm::Group& peers = group(instruction.group);
  switch (instruction.op) {
    case Op::reduce_tied: return peers.all_reduce(state.grads.data_ptr(), state.grads.numel(), comm::DataType::f32);
    case Op::reduce_gradients:
      if (!bucket.sharded()) return peers.all_reduce(state.grads.data_ptr(), state.grads.numel(), comm::DataType::f32);
      if (bucket.zero >= 2) {
        // What earlier micro-batches have left goes into the sum as this rank's part of it.
        state.grads.narrow(0, state.shard_begin, bucket.shard_count()).add_(state.shard_grads);
        reducing_.push_back(index);
      }
      return peers.reduce_scatter(state.grads.data_ptr(), state.shard_grads.data_ptr(), shard, comm::DataType::f32);
    case Op::reduce_shards: return peers.all_reduce(state.shard_grads.data_ptr(), shard, comm::DataType::f32);
    case Op::gather_parameters: return peers.all_gather(state.shard_values.data_ptr(), state.values.data_ptr(), shard, type_of(precision_));
    default: throw Error(ErrorCode::internal, text("no communication for ", program::name_of(instruction.op)));
  }
}

}  // namespace tessera::train
