#include "train/executor.hpp"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

#include "base/clock.hpp"
#include "program/traffic.hpp"
#include "train/tensor_passing.hpp"

namespace tessera::train {

using program::Instruction;
using program::Op;

namespace {

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), static_cast<std::size_t>(tensor.nbytes())};
}

bool tells_of_others(const Error& error) { return error.code() == ErrorCode::peer_lost || error.code() == ErrorCode::deadline_exceeded; }

// What communication waits in line with.
std::pair<int, Op> stream_of(const Instruction& instruction) {
  return instruction.group >= 0 ? std::pair(-1 - instruction.group, Op::forward) : std::pair(instruction.peer, instruction.op);
}

bool is_of_gradient(const Instruction& instruction) {
  return instruction.op == Op::send_gradient || instruction.op == Op::receive_gradient || instruction.op == Op::gather_gradient;
}

std::uint32_t tag_of(const Instruction& message) { return is_of_gradient(message) ? 1 : 0; }

std::int64_t count_of(const model::TensorSpec& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<>());
}

// [samples, ...] each: sample by sample one tensor after the other.
at::Tensor side_by_side(const nn::Tensors& tensors) {
  if (tensors.size() == 1) return tensors.front().contiguous().view(-1);
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(tensor.flatten(1));
  return at::cat(rows, 1).view(-1);
}

// Of one sample.
std::int64_t count_of(const std::vector<model::TensorSpec>& tensors) {
  std::int64_t out = 0;
  for (const model::TensorSpec& tensor : tensors) out += count_of(tensor);
  return out;
}

// The other way round; what is left at the end of `flat` belongs to none.
nn::Tensors taken_apart(const at::Tensor& flat, std::int64_t samples, const std::vector<model::TensorSpec>& specs) {
  const std::int64_t each = count_of(specs);
  const at::Tensor rows = flat.narrow(0, 0, samples * each).view({samples, each});
  nn::Tensors out;
  std::int64_t begin = 0;
  for (const model::TensorSpec& spec : specs) {
    std::vector<std::int64_t> shape = {samples};
    shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
    out.push_back(rows.narrow(1, begin, count_of(spec)).reshape(shape));
    begin += count_of(spec);
  }
  return out;
}

at::ScalarType scalar_of(model::Precision precision) { return precision == model::Precision::f32 ? at::kFloat : at::kBFloat16; }

comm::DataType type_of(model::Precision precision) {
  return precision == model::Precision::f32 ? comm::DataType::f32 : comm::DataType::bf16;
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
    for (const auto& handles : *all)
      for (const auto& handle : handles) {
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
  scalars_ = {};
  norm_ = {};
}

Scalars Executor::run(const Batches& batches, double loss_scale, const Wishes& wishes, const Step& step) {
  at_ = -1;
  const Telling telling(*this);
  const std::size_t count = program_.instructions.size();
  spans_.clear();
  late_spans_.clear();
  begin();
  wishes_ = wishes;
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
  if (unfinished_) late_spans_ = communication_spans(previous_, previous_begins_, true);
  unfinished_ = program_.delayed;
  return scalars_;
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
    for (const auto& handle : previous_[dependency]) wait(handle, dependency);
}

void Executor::wait_for_exchange() {
  for (std::size_t i = 0; i < handles_.size(); ++i)
    if (goes_on(static_cast<int>(i)))
      for (const auto& handle : handles_[i]) wait(handle, static_cast<int>(i));
}

double Executor::finish(const Step& step) {
  if (!unfinished_) return 0;
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
  if (instruction.finishes_previous) {
    scalars_.squared_norm += store_.squared_norm(instruction.bucket);
    // Their reduction may have ended after the run that began it.
    if (program_.buckets[instruction.bucket].zero >= 2) store_.release_grads(instruction.bucket);
  }
  step(instruction.bucket, scalars_);
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
  const plan::Strategy& strategy = program_.strategy_of(block);
  pass.block = block;
  block_ = block;
  pass.batch = &batches.at(cut).at(instruction.micro_batch);
  pass.tensor_group = tensor_group < 0 ? comm::Group() : group(tensor_group);
  pass.expert_group = expert_group < 0 ? comm::Group() : group(expert_group);
  pass.context_group = context_group < 0 ? comm::Group() : group(context_group);
  pass.context = strategy.context;
  pass.sequence_parallel = strategy.sequence_parallel;
  pass.recompute_attention = strategy.recompute == model::Recompute::selective;
}

void Executor::forward(const Instruction& instruction, const Batches& batches, nn::Pass& pass) {
  const int m = instruction.micro_batch;
  nn::Tensors tensors = arrived({m, instruction.first_block}, false, pass);
  for (int b = instruction.first_block; b < instruction.last_block; ++b) {
    const bool recompute = program_.training && program_.recomputes(b);
    nn::Saved saved;
    if (b > instruction.first_block) tensors = cut_anew(std::move(tensors), b, b - 1, b, pass);
    enter(b, instruction, batches, pass);
    pass.training = program_.training && !recompute;
    // Only a recomputed block needs its inputs again.
    const nn::Tensors inputs = read_by(flow_[b], tensors);
    if (recompute) activations_[{m, b}] = inputs;
    const nn::Tensors outputs = store_.block(b).forward(inputs, saved, pass);
    if (program_.training && !recompute) saved_[{m, b}] = std::move(saved);
    if (b + 1 == static_cast<int>(flow_.size())) {
      // Tensor-parallel peers hold the same sums; they count once.
      if (program_.cut_of(b).tp_index == 0) {
        scalars_.loss += outputs.at(0).item<float>();
        scalars_.tokens += static_cast<double>(outputs.at(1).item<std::int64_t>());
      }
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
  return std::all_of(handles_[index].begin(), handles_[index].end(), [](const comm::Handle& handle) { return handle.done(); });
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
void Executor::wait(const comm::Handle& handle, int index) const {
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

// The tensors between two blocks, as block `own` on one side of them holds them.
std::vector<model::TensorSpec> Executor::tensors_at(int block, int own) const {
  std::vector<model::TensorSpec> out = flow_[block].before;
  const plan::Strategy& strategy = program_.strategy_of(own);
  const int parts = strategy.cp * (strategy.sequence_parallel ? strategy.tp : 1);
  if (parts > 1)
    for (model::TensorSpec& tensor : out) tensor.shape.at(0) /= parts;
  return out;
}

// Of the block on this side of the boundary: activations are sent by the block before it, whose gradients come back.
int Executor::own_block(const Instruction& instruction) const {
  const bool before =
      instruction.op == Op::send_activation || instruction.op == Op::receive_gradient || instruction.op == Op::gather_gradient;
  return instruction.first_block - (before ? 1 : 0);
}

// Where a message begins in this rank's part of the micro-batch.
std::int64_t Executor::begin_of(const Instruction& message) const {
  const int own = own_block(message);
  const program::Cut& cut = program_.cut_of(own);
  const std::int64_t each = count_of(flow_[message.first_block].before);
  const std::int64_t begin = cut.samples_before * each + cut.context_index * (cut.micro_batch_size * each / cut.context_size);
  const std::int64_t held = cut.micro_batch_size * count_of(tensors_at(message.first_block, own));
  return message.offset.value / model::element_size(precision_).value - begin -
         (program_.strategy_of(own).sequence_parallel ? cut.tp_index * held : 0);
}

// Of all samples that the rank has of the micro-batch, as long as tensor-parallel ranks gather it: in equal parts.
at::Tensor& Executor::arriving(const Instruction& instruction) {
  at::Tensor& flat = arriving_[{{instruction.micro_batch, instruction.first_block}, is_of_gradient(instruction)}];
  if (flat.defined()) return flat;
  const int own = own_block(instruction);
  const program::Cut& cut = program_.cut_of(own);
  const std::int64_t count = cut.micro_batch_size * count_of(tensors_at(instruction.first_block, own));
  const std::int64_t parts = cut.tp_size;
  return flat = at::empty({(count + parts - 1) / parts * parts}, at::TensorOptions().dtype(scalar_of(precision_)));
}

// What a pass begins with: brought by messages, or left by the pass before it on this rank; nothing at the model's ends.
nn::Tensors Executor::arrived(const Key& key, bool gradient, nn::Pass& pass) {
  const int block = key.second;
  const int own = gradient ? block - 1 : block;
  if (const auto found = arriving_.find({key, gradient}); found != arriving_.end()) {
    put_in_place({key, gradient});
    nn::Tensors out = taken_apart(found->second, program_.cut_of(own).micro_batch_size, tensors_at(block, own));
    arriving_.erase(found);
    return out;
  }
  std::map<Key, nn::Tensors>& here = gradient ? gradients_ : activations_;
  const auto found = here.find(key);
  if (found == here.end()) return {};
  nn::Tensors out = std::move(found->second);
  here.erase(found);
  return cut_anew(std::move(out), block, gradient ? block : block - 1, own, pass);
}

// What ranks that cut the tensors before `block` as block `from` does hold of this rank's part under the cut of block `to`.
at::Tensor Executor::exchanged_anew(const at::Tensor& flat, int block, int from, int to) const {
  const program::Cut& before = program_.cut_of(from);
  const program::Cut& after = program_.cut_of(to);
  const std::int64_t each = count_of(flow_[block].before);
  const comm::Group& ranks = group(program_.cut_of(block).anew_group);
  const program::Part had = before.part(each);
  const program::Part wanted = after.part(each);
  const std::int64_t held_before = program_.strategy_of(from).sequence_parallel ? 0 : had.begin;
  const at::Tensor own = at::empty({wanted.count()}, flat.options());
  std::vector<at::Tensor> buffers;
  std::vector<comm::Handle> handles;
  std::vector<std::function<void()>> unpack;
  const auto buffer_for = [&](const std::vector<program::SharedRun>& runs) {
    std::int64_t count = 0;
    for (const program::SharedRun& run : runs) count += run.count;
    return buffers.emplace_back(at::empty({count}, flat.options()));
  };
  for (int peer = 0; peer < ranks.size(); ++peer) {
    const int ahead = peer - ranks.rank();
    const auto given = program::shared_runs(had, after.part(each, ahead), each);
    if (peer == ranks.rank()) {
      for (const program::SharedRun& run : given)
        own.narrow(0, run.second, run.count).copy_(flat.narrow(0, held_before + run.first, run.count));
      continue;
    }
    if (!given.empty()) {
      const at::Tensor buffer = buffer_for(given);
      std::int64_t at = 0;
      for (const program::SharedRun& run : given) {
        buffer.narrow(0, at, run.count).copy_(flat.narrow(0, held_before + run.first, run.count));
        at += run.count;
      }
      handles.push_back(ranks.send(bytes_of(buffer), peer, 0));
    }
    if (const auto taken = program::shared_runs(wanted, before.part(each, ahead), each); !taken.empty()) {
      const at::Tensor buffer = buffer_for(taken);
      handles.push_back(ranks.receive(bytes_of(buffer), peer, 0));
      unpack.push_back([=] {
        std::int64_t at = 0;
        for (const program::SharedRun& run : taken) {
          own.narrow(0, run.first, run.count).copy_(buffer.narrow(0, at, run.count));
          at += run.count;
        }
      });
    }
  }
  for (const comm::Handle& handle : handles) handle.wait();
  for (const auto& one : unpack) one();
  return own;
}

// The tensors before `block` or their gradients, as block `to` holds them; they are as block `from` does.
nn::Tensors Executor::cut_anew(nn::Tensors tensors, int block, int from, int to, nn::Pass& pass) const {
  const program::Cut& before = program_.cut_of(from);
  const program::Cut& after = program_.cut_of(to);
  const bool cut_rows = program_.strategy_of(from).sequence_parallel;
  const bool cuts_rows = program_.strategy_of(to).sequence_parallel;
  if (before.same_layout(after) && cut_rows == cuts_rows) return tensors;
  const std::int64_t each = count_of(flow_[block].before);
  const program::Part part = after.part(each);
  const std::int64_t all = after.micro_batch_size * each / after.context_size;
  const std::int64_t parts = after.tp_size;
  nn::Interval exchange{real_clock().now(), {}};
  const auto exchanged = [&] {
    exchange.end = real_clock().now();
    if (pass.exchanges != nullptr) pass.exchanges->push_back(exchange);
  };
  at::Tensor own = side_by_side(tensors);
  if (!before.same_layout(after) && (before.context_size > 1 || after.context_size > 1)) {
    own = exchanged_anew(own, block, from, to);
    if (parts == 1 || cuts_rows) exchanged();
  } else {
    // Of other ranks it needs nothing.
    own = own.narrow(0, (after.samples_before - before.samples_before) * each + part.begin - (cut_rows ? before.part(each).begin : 0),
                     part.count());
  }
  const std::vector<model::TensorSpec> specs = tensors_at(block, to);
  if (parts == 1 || cuts_rows) return taken_apart(own, after.micro_batch_size, specs);
  // Equal places, in which a part that is shorter leaves room.
  const std::int64_t place = (all + parts - 1) / parts;
  at::Tensor places = at::empty({parts, place}, own.options());
  places[after.tp_index].narrow(0, 0, own.numel()).copy_(own);
  group(after.tensor_group)
      .all_gather(places[after.tp_index].data_ptr(), places.data_ptr(), static_cast<std::size_t>(place), type_of(precision_))
      .wait();
  exchanged();
  if (place * parts == all) return taken_apart(places.view(-1), after.micro_batch_size, specs);
  std::vector<at::Tensor> gathered;
  for (std::int64_t other = 0; other < parts; ++other)
    gathered.push_back(places[other].narrow(0, 0, all * (other + 1) / parts - all * other / parts));
  return taken_apart(at::cat(gathered), after.micro_batch_size, specs);
}

comm::Handle Executor::send(int index, std::map<Key, nn::Tensors>& from) {
  const Instruction& message = program_.instructions[index];
  const Key key{message.micro_batch, message.first_block};
  const std::int64_t count = message.bytes.value / model::element_size(precision_).value;
  const at::Tensor all = side_by_side(from.at(key));
  if (message.crossed < 0) {
    buffers_[index] = all.narrow(0, begin_of(message), count);
  } else {
    std::vector<at::Tensor> runs;
    for_crossed(message, [&](std::int64_t held, const program::SharedRun& run) { runs.push_back(all.narrow(0, held, run.count)); });
    buffers_[index] = at::cat(runs);
  }
  if (--unsent_.at({key, is_of_gradient(message)}) == 0) from.erase(key);
  sending_.push_back(index);
  return world_.send(bytes_of(buffers_[index]), message.peer, tag_of(message));
}

comm::Handle Executor::receive(int index) {
  const Instruction& message = program_.instructions[index];
  const std::int64_t count = message.bytes.value / model::element_size(precision_).value;
  const at::Tensor& flat = arriving(message);
  if (message.crossed >= 0) {
    apart_[{{message.micro_batch, message.first_block}, is_of_gradient(message)}].push_back(index);
    buffers_[index] = at::empty({count}, flat.options());
    return world_.receive(bytes_of(buffers_[index]), message.peer, tag_of(message));
  }
  return world_.receive(bytes_of(flat.narrow(0, begin_of(message), count)), message.peer, tag_of(message));
}

// Where each run that the message carries lies in what the rank holds.
void Executor::for_crossed(const Instruction& message, const std::function<void(std::int64_t held, program::SharedRun run)>& visit) const {
  const program::CrossedParts& parts = program_.crossed[static_cast<std::size_t>(message.crossed)];
  const std::int64_t begin = program_.strategy_of(own_block(message)).sequence_parallel ? 0 : parts.own.begin;
  for (const program::SharedRun& run : program::shared_runs(parts.own, parts.peer, parts.each)) visit(begin + run.first, run);
}

// What messages have brought apart, once all are there.
void Executor::put_in_place(const Crossing& crossing) {
  const auto found = apart_.find(crossing);
  if (found == apart_.end()) return;
  const at::Tensor& flat = arriving_.at(crossing);
  for (const int index : found->second) {
    std::int64_t at = 0;
    for_crossed(program_.instructions[index], [&](std::int64_t held, const program::SharedRun& run) {
      flat.narrow(0, held, run.count).copy_(buffers_[index].narrow(0, at, run.count));
      at += run.count;
    });
    buffers_[index] = at::Tensor();
  }
  apart_.erase(found);
}

comm::Handle Executor::gather_inputs(const Instruction& instruction) {
  put_in_place({{instruction.micro_batch, instruction.first_block}, is_of_gradient(instruction)});
  const at::Tensor& flat = arriving(instruction);
  const program::Cut& cut = program_.cut_of(own_block(instruction));
  const at::Tensor own = flat.chunk(cut.tp_size).at(cut.tp_index);
  return group(instruction.group).all_gather(own.data_ptr(), flat.data_ptr(), static_cast<std::size_t>(own.numel()), type_of(precision_));
}

comm::Handle Executor::communicate(int index) {
  const Instruction& instruction = program_.instructions[index];
  switch (instruction.op) {
    case Op::send_activation: return send(index, activations_);
    case Op::send_gradient: return send(index, gradients_);
    case Op::receive_activation:
    case Op::receive_gradient: return receive(index);
    case Op::gather_activation:
    case Op::gather_gradient: return gather_inputs(instruction);
    case Op::reduce_norm:
      if (program_.training && !program_.delayed) {
        norm_.begin = real_clock().now();
        scalars_.squared_norm = store_.squared_norm();
        norm_.end = real_clock().now();
      }
      scalars_.stop = wishes_.stop ? 1 : 0;
      scalars_.compare = wishes_.compare ? 1 : 0;
      if (instruction.group < 0) return {};
      return group(instruction.group).all_reduce(&scalars_, sizeof(Scalars) / sizeof(double), comm::DataType::f64);
    default: break;
  }
  const program::Bucket& bucket = program_.buckets[instruction.bucket];
  BucketState& state = store_.bucket(instruction.bucket);
  const auto shard = static_cast<std::size_t>(bucket.shard_count());
  const comm::Group& peers = group(instruction.group);
  switch (instruction.op) {
    case Op::reduce_tied: {
      const at::Tensor& all = bucket.whole > 0 ? state.whole_grads : state.grads;
      return peers.all_reduce(all.data_ptr(), static_cast<std::size_t>(instruction.bytes.value) / sizeof(float), comm::DataType::f32);
    }
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
