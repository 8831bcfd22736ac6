#include "train/executor.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/clock.hpp"
#include "nn/autograd.hpp"
#include "nn/tensor_parallel.hpp"
#include "program/traffic.hpp"
#include "train/tables.hpp"
#include "train/tensor_passing.hpp"

namespace tessera::train {

using program::Instruction;
using program::Op;

namespace {

bool tells_of_others(const Error& error) { return error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::deadline_exceeded; }

// What communication waits in line with.
std::pair<int, Op> stream_of(const Instruction& instruction) {
  if (program::is_of_rows(instruction.op)) return {-1, Op::pull_rows};  // servers are asked in order
  return instruction.group >= 0 ? std::pair(-1 - instruction.group, Op::forward) : std::pair(instruction.peer, instruction.op);
}

}  // namespace

Executor::Executor(program::Program program, const model::ModelSpec& model, model::Precision precision, Store& store,
                   comm::Communicator& comm)
    : program_(std::move(program)),
      model_(model),
      precision_(precision),
      instances_(model_.blocks()),
      flow_(model::tensor_flow(model)),
      store_(store),
      comm_(comm),
      world_(comm.group(comm.world().ranks(), text(program::kPipelineGroup, program_.training ? "" : ".evaluation"))) {
  for (const auto& group : program_.groups)
    groups_.push_back(comm.group(group.ranks, group.name + (program_.training ? "" : ".evaluation")));
}

void Executor::settle() noexcept {
  for (const auto* all : {&previous_, &handles_})
    for (std::size_t i = 0; i < all->size(); ++i)
      for (const auto& handle : (*all)[i]) {
        if (program::is_of_rows(program_.instructions[i].op)) continue;
        try {
          handle.wait();
        } catch (const std::exception&) {  // who lost a peer hears of it elsewhere
        }
      }
}

class Executor::Telling {
 public:
  explicit Telling(const Executor& executor) : comm_(executor.comm_) {
    comm_.set_place([&executor] { return executor.place(); });
  }
  ~Telling() {
    comm_.set_place([] { return std::string("the end of a step"); });
  }
  Telling(const Telling&) = delete;
  Telling& operator=(const Telling&) = delete;

 private:
  comm::Communicator& comm_;
};

std::string Executor::place() const {
  const int at = at_;
  if (at < 0) return "the beginning of a step";
  if (waiting_) return "waiting for " + program::awaited(program_, at);
  const int block = block_;
  return program::place(program_, at) + (block < 0 ? std::string() : ", " + instances_[static_cast<std::size_t>(block)].name());
}

void Executor::begin() {
  const std::size_t count = program_.instructions.size();
  activations_.clear();
  gradients_.clear();
  arriving_.clear();
  apart_.clear();
  unsent_.clear();
  for (const Instruction& instruction : program_.instructions)
    if (instruction.op == Op::send_activation || instruction.op == Op::send_gradient)
      ++unsent_[{{instruction.micro_batch, instruction.first_block}, is_of_gradient(instruction)}];
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
  sending_.clear();
  losses_.clear();
  scored_.clear();
  scalars_ = {};
  norm_ = {};
}

Scalars Executor::run(const Batches& batches, double loss_scale, const Wishes& wishes, const Step& step,
                      std::vector<comm::Group> context_groups) {
  const nn::WithoutAutograd plain;
  context_groups_ = std::move(context_groups);
  at_ = -1;
  const Telling telling(*this);
  const std::size_t count = program_.instructions.size();
  spans_.clear();
  late_spans_.clear();
  begin();
  wishes_ = wishes;
  const auto left_out = [&](const Instruction& instruction) {
    return instruction.finishes_previous && !unfinished_ && !(program_.stale && instruction.op == Op::optimizer_step);
  };
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
    at_ = static_cast<int>(i);
    std::vector<nn::Interval> exchanges;
    try {
      exchanges = compute(static_cast<int>(i), batches, loss_scale, step);
    } catch (const Error& error) {
      rethrow_at(error);
    }
    block_ = -1;
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
  if (unfinished_ || tables_ != nullptr) late_spans_ = communication_spans(previous_, previous_begins_, true);
  unfinished_ = program_.delayed;
  return scalars_;
}

// Of communication that is over: of the run's own, or of what went on beyond it. Those of a stream follow one another, also where this
// thread was stopped between a submission and the clock, so that one seems to end after the next.
std::vector<InstructionSpan> Executor::communication_spans(const Handles& handles, const std::vector<Seconds>& begins, bool late) const {
  std::vector<InstructionSpan> out;
  std::map<std::pair<int, Op>, Seconds> free_from;  // by stream
  for (std::size_t i = 0; i < handles.size(); ++i) {
    if (goes_on(static_cast<int>(i)) != late || handles[i].empty()) continue;
    if (program::is_of_rows(program_.instructions[i].op) && !handles[i].front().done()) continue;
    InstructionSpan span{static_cast<int>(i), begins[i], begins[i]};
    for (const auto& handle : handles[i]) span.end = std::max(span.end, begins[i] + handle.elapsed());
    Seconds& free = free_from[stream_of(program_.instructions[i])];
    span.begin = std::max(span.begin, free);
    free = span.end = std::max(span.begin, span.end);
    out.push_back(std::move(span));
  }
  return out;
}

// Into the next run.
bool Executor::goes_on(int index) const {
  const Op op = program_.instructions[index].op;
  if (op == Op::push_rows || (op == Op::pull_rows && program_.rows_ahead)) return true;
  return program_.delayed && (op == Op::reduce_tied || op == Op::reduce_gradients || op == Op::reduce_shards);
}

void Executor::wait_for_previous(int index) {
  for (const int dependency : program_.instructions[index].after_previous) {
    if (program_.instructions[dependency].op == Op::pull_rows)
      wait(tables_->rows(), dependency);
    else if (unfinished_)
      for (const auto& handle : previous_[dependency]) wait(handle, dependency);
  }
}

void Executor::wait_for_exchange() {
  for (std::size_t i = 0; i < handles_.size(); ++i)
    if (goes_on(static_cast<int>(i)))
      for (const auto& handle : handles_[i]) wait(handle, static_cast<int>(i));
}

double Executor::finish(const Step& step) {
  if (!unfinished_) return 0;
  const nn::WithoutAutograd plain;
  const Telling telling(*this);
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
  return scalars_.squared_norm;
}

void Executor::step_bucket(const Instruction& instruction, const Step& step) {
  if (program_.stale && !unfinished_) return store_.keep_for_next_step(instruction.bucket);
  if (instruction.finishes_previous) {
    scalars_.squared_norm += store_.squared_norm(instruction.bucket);
    // Their reduction may have ended after the run that began it.
    if (program_.buckets[instruction.bucket].zero >= 2) store_.release_grads(instruction.bucket);
  }
  step(instruction.bucket, scalars_);
  if (program_.stale) store_.keep_for_next_step(instruction.bucket);
}

std::vector<nn::Interval> Executor::compute(int index, const Batches& batches, double loss_scale, const Step& step) {
  const Instruction& instruction = program_.instructions[index];
  if (instruction.op == Op::optimizer_step) {
    step_bucket(instruction, step);
    return {};
  }
  std::vector<nn::Interval> exchanges;
  nn::Pass pass;
  pass.exchanges = &exchanges;
  pass.precision = precision_;
  pass.training = program_.training;
  pass.drops = program_.training;
  pass.loss_scale = loss_scale;
  pass.sample_scale = 1.0 / static_cast<double>(program_.samples * program_.micro_batches);
  if (instruction.op == Op::forward)
    forward(instruction, batches, pass);
  else
    backward(instruction, batches, pass);
  for (const int bucket : instruction.releases) store_.release_values(bucket);
  return exchanges;
}

// What is the block's own in a pass.
void Executor::enter(int block, const Instruction& instruction, const Batches& batches, nn::Pass& pass) const {
  const int cut = program_.cut_index(block);
  const int tensor_group = program_.cuts[cut].tensor_group;
  const int expert_group = program_.cuts[cut].expert_group;
  const int context_group = program_.cuts[cut].context_group;
  const int replica_group = program_.cuts[cut].replica_group;
  const plan::Strategy& strategy = program_.strategy_of(block);
  pass.block = block;
  block_ = block;
  pass.batch = &batches.at(cut).at(instruction.micro_batch);
  pass.tensor_group = tensor_group < 0 ? comm::Group() : group(tensor_group);
  pass.expert_group = expert_group < 0 ? comm::Group() : group(expert_group);
  pass.context_group = context_group >= 0 ? group(context_group) : comm::Group();
  if (!context_groups_.empty()) pass.context_group = context_groups_.at(static_cast<std::size_t>(instruction.micro_batch));
  pass.replica_group = replica_group < 0 ? comm::Group() : group(replica_group);
  pass.context = strategy.context;
  pass.sequence_parallel = strategy.sequence_parallel;
  pass.recompute_attention = strategy.recompute == model::Recompute::selective;
}

void Executor::forward(const Instruction& instruction, const Batches& batches, nn::Pass& pass) {
  const int m = instruction.micro_batch;
  pass.routes = routes_;
  nn::Tensors tensors = arrived({m, instruction.first_block}, false, pass);
  for (int b = instruction.first_block; b < instruction.last_block; ++b) {
    const bool recompute = program_.training && program_.recomputes(b);
    nn::Saved saved;
    if (b > instruction.first_block) tensors = cut_anew(std::move(tensors), b, b - 1, b, pass);
    enter(b, instruction, batches, pass);
    pass.training = program_.training && !recompute;
    if (pass.training && is_loss(b)) store_.hold_grads(b);  // it adds to them in its forward pass
    // Only a recomputed block needs its inputs again.
    const nn::Tensors inputs = read_by(flow_[b], tensors);
    if (recompute) activations_[{m, b}] = inputs;
    const nn::Tensors outputs = store_.block(b).forward(inputs, saved, pass);
    if (program_.training && !recompute) saved_[{m, b}] = std::move(saved);
    if (is_loss(b)) {
      // Tensor-parallel peers hold the same sums; they count once.
      if (program_.cut_of(b).tp_index == 0) losses_.push_back(outputs);
      return;
    }
    tensors = tensors_after(flow_[b], tensors, outputs);
  }
  activations_[{m, instruction.last_block}] = std::move(tensors);
}

void Executor::backward(const Instruction& instruction, const Batches& batches, nn::Pass& pass) {
  const int m = instruction.micro_batch;
  nn::Tensors grads = arrived({m, instruction.last_block}, true, pass);
  for (int b = instruction.last_block - 1; b >= instruction.first_block; --b) {
    nn::Block& block = store_.block(b);
    nn::Saved saved;
    enter(b, instruction, batches, pass);
    if (instruction.op != Op::backward_input || is_loss(b)) store_.hold_grads(b);
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
    if (b + 1 < instruction.last_block) grads = cut_anew(std::move(grads), b + 1, b + 1, b, pass);
    grads = gradients_before(flow_[b], grads, block.backward_input(gradients_of_outputs(flow_[b], grads), saved, pass));
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
  return std::all_of(handles_[index].begin(), handles_[index].end(), [](const nn::Exchange& handle) { return handle.done(); });
}

// Gradients that are reduced into a shard, and what has been sent, need no memory any more.
void Executor::release_done() {
  std::erase_if(reducing_, [&](int index) {
    if (!done(index)) return false;
    store_.release_grads(program_.instructions[index].bucket);
    return true;
  });
  std::erase_if(sending_, [&](int index) {
    if (!done(index)) return false;
    buffers_[index] = at::Tensor();
    return true;
  });
}

void Executor::start_ready() {
  release_done();
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
  for (const auto& handle : handles_[index]) wait(handle, index);
  release_done();
}

// In the words of the program.
void Executor::wait(const nn::Exchange& handle, int index) const {
  if (!handle.done()) {
    at_ = index;
    waiting_ = true;
  }
  try {
    handle.wait();
  } catch (const Error& error) {
    waiting_ = false;
    if (!tells_of_others(error)) throw;
    throw Error(
        error.code(),
        text("rank ", program_.rank, " waits for ", program::awaited(program_, index), " (instruction ", index, "): ", error.message()),
        error.where(), error.expected(), error.hint());
  }
  waiting_ = false;
}

// Of an exchange inside a pass.
void Executor::rethrow_at(const Error& error) const {
  if (!tells_of_others(error)) throw;
  throw Error(error.code(), text("rank ", program_.rank, " is at ", place(), " (instruction ", at_.load(), "): ", error.message()),
              error.where(), error.expected(), error.hint());
}

void Executor::ensure_started(int index) {
  start_ready();
  while (!started_[index]) {
    for (int dependency : program_.instructions[pending_.front()].after)
      for (const auto& handle : handles_[dependency]) wait(handle, dependency);
    start_ready();
  }
}

// Once all passes have run: until then nothing waits for what a device computes.
void Executor::add_up_losses() {
  for (const nn::Tensors& loss : losses_) {
    scalars_.loss += loss.at(0).item<float>();
    scalars_.tokens += static_cast<double>(loss.at(1).item<std::int64_t>());
    if (loss.size() <= 2) continue;
    if (loss[2].dim() == 0)
      scalars_.correct += static_cast<double>(loss[2].item<std::int64_t>());
    else
      scored_.push_back(loss[2].cpu());
  }
}

nn::Exchange Executor::communicate(int index) {
  const Instruction& instruction = program_.instructions[index];
  switch (instruction.op) {
    case Op::send_activation: return send(index, activations_);
    case Op::send_gradient: return send(index, gradients_);
    case Op::receive_activation:
    case Op::receive_gradient: return receive(index);
    case Op::gather_activation:
    case Op::gather_gradient: return gather_inputs(instruction);
    case Op::pull_rows: return tables_->pull();
    case Op::push_rows: return tables_->push(!std::isfinite(scalars_.squared_norm));
    case Op::reduce_norm:
      if (program_.training && !program_.delayed) {
        norm_.begin = real_clock().now();
        scalars_.squared_norm = store_.squared_norm();
        norm_.end = real_clock().now();
      }
      add_up_losses();
      scalars_.stop = wishes_.stop ? 1 : 0;
      scalars_.compare = wishes_.compare ? 1 : 0;
      scalars_.servers = wishes_.servers ? 1 : 0;
      if (instruction.group < 0) return {};
      return nn::Exchange(group(instruction.group).all_reduce(&scalars_, sizeof(Scalars) / sizeof(double), comm::DataType::f64));
    default: break;
  }
  const program::Bucket& bucket = program_.buckets[instruction.bucket];
  BucketState& state = store_.bucket(instruction.bucket);
  const comm::Group& peers = group(instruction.group);
  switch (instruction.op) {
    case Op::reduce_tied: {
      const at::Tensor& all = bucket.whole > 0 ? state.whole_grads : state.grads;
      return nn::all_reduce(peers, all.narrow(0, 0, instruction.bytes.value / static_cast<std::int64_t>(sizeof(float))));
    }
    case Op::reduce_gradients:
      if (!bucket.sharded()) return nn::all_reduce(peers, state.grads);
      if (bucket.zero >= 2) {
        // What earlier micro-batches have left goes into the sum as this rank's part of it.
        state.grads.narrow(0, state.shard_begin, bucket.shard_count()).add_(state.shard_grads);
        reducing_.push_back(index);
      }
      return nn::reduce_scatter(peers, state.grads, state.shard_grads);
    case Op::reduce_shards: return nn::all_reduce(peers, state.shard_grads);
    case Op::gather_parameters: store_.hold_values(instruction.bucket); return nn::all_gather(peers, state.shard_values, state.values);
    default: throw Error(ErrorCode::internal, text("no communication for ", program::name_of(instruction.op)));
  }
}

}  // namespace tessera::train
