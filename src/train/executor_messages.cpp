// What an executor passes on: messages between stages, and activations that blocks of a rank cut in other ways.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <functional>
#include <numeric>

#include "base/clock.hpp"
#include "nn/tensor_parallel.hpp"
#include "train/executor.hpp"

namespace tessera::train {

using program::Instruction;
using program::Op;

namespace {

std::int64_t count_of(const model::TensorSpec& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<>());
}

// Maps [samples, channels, height, width] are held channels last, and travel so: anything else would copy them on both sides.
constexpr std::size_t kDimsOfMap = 3;  // of a sample

at::Tensor as_held(const at::Tensor& tensor) {
  return tensor.dim() == static_cast<std::int64_t>(kDimsOfMap) + 1 ? tensor.permute({0, 2, 3, 1}).contiguous() : tensor.contiguous();
}

// [samples, ...] each: sample by sample one tensor after the other.
at::Tensor side_by_side(const nn::Tensors& tensors) {
  if (tensors.size() == 1) return as_held(tensors.front()).view(-1);
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : tensors) rows.push_back(as_held(tensor).flatten(1));
  return at::cat(rows, 1).view(-1);
}

// Of one sample.
std::int64_t count_of(const std::vector<model::TensorSpec>& tensors) {
  std::int64_t out = 0;
  for (const model::TensorSpec& tensor : tensors) out += count_of(tensor);
  return out;
}

// The other way round, each tensor by itself; what is left at the end of `flat` belongs to none.
nn::Tensors taken_apart(const at::Tensor& flat, std::int64_t samples, const std::vector<model::TensorSpec>& specs) {
  const std::int64_t each = count_of(specs);
  const at::Tensor rows = flat.narrow(0, 0, samples * each).view({samples, each});
  nn::Tensors out;
  std::int64_t begin = 0;
  for (const model::TensorSpec& spec : specs) {
    const at::Tensor own = rows.narrow(1, begin, count_of(spec)).contiguous();
    std::vector<std::int64_t> shape = {samples};
    shape.insert(shape.end(), spec.shape.begin(), spec.shape.end());
    if (spec.shape.size() == kDimsOfMap)
      out.push_back(own.view({samples, shape[2], shape[3], shape[1]}).permute({0, 3, 1, 2}));
    else
      out.push_back(own.view(shape));
    begin += count_of(spec);
  }
  return out;
}

at::ScalarType scalar_of(model::Precision precision) { return precision == model::Precision::f32 ? at::kFloat : at::kBFloat16; }

}  // namespace

bool Executor::is_of_gradient(const Instruction& message) {
  return message.op == Op::send_gradient || message.op == Op::receive_gradient || message.op == Op::gather_gradient;
}

std::uint32_t Executor::tag_of(const Instruction& message) { return is_of_gradient(message) ? 1 : 0; }

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
  return flat = at::empty({(count + parts - 1) / parts * parts}, at::TensorOptions(store_.device()).dtype(scalar_of(precision_)));
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
  std::vector<nn::Exchange> exchanges;
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
      exchanges.push_back(nn::send(ranks, buffer, peer, 0));
    }
    if (const auto taken = program::shared_runs(wanted, before.part(each, ahead), each); !taken.empty()) {
      const at::Tensor buffer = buffer_for(taken);
      exchanges.push_back(nn::receive(ranks, buffer, peer, 0));
      unpack.push_back([=] {
        std::int64_t at = 0;
        for (const program::SharedRun& run : taken) {
          own.narrow(0, run.first, run.count).copy_(buffer.narrow(0, at, run.count));
          at += run.count;
        }
      });
    }
  }
  for (const nn::Exchange& exchange : exchanges) exchange.wait();
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
  nn::all_gather(group(after.tensor_group), places[after.tp_index], places).wait();
  exchanged();
  if (place * parts == all) return taken_apart(places.view(-1), after.micro_batch_size, specs);
  std::vector<at::Tensor> gathered;
  for (std::int64_t other = 0; other < parts; ++other)
    gathered.push_back(places[other].narrow(0, 0, all * (other + 1) / parts - all * other / parts));
  return taken_apart(at::cat(gathered), after.micro_batch_size, specs);
}

nn::Exchange Executor::send(int index, std::map<Key, nn::Tensors>& from) {
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
  return nn::send(world_, buffers_[index], message.peer, tag_of(message));
}

nn::Exchange Executor::receive(int index) {
  const Instruction& message = program_.instructions[index];
  const std::int64_t count = message.bytes.value / model::element_size(precision_).value;
  const at::Tensor& flat = arriving(message);
  if (message.crossed >= 0) {
    apart_[{{message.micro_batch, message.first_block}, is_of_gradient(message)}].push_back(index);
    buffers_[index] = at::empty({count}, flat.options());
    return nn::receive(world_, buffers_[index], message.peer, tag_of(message));
  }
  return nn::receive(world_, flat.narrow(0, begin_of(message), count), message.peer, tag_of(message));
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

nn::Exchange Executor::gather_inputs(const Instruction& instruction) {
  put_in_place({{instruction.micro_batch, instruction.first_block}, is_of_gradient(instruction)});
  const at::Tensor& flat = arriving(instruction);
  const program::Cut& cut = program_.cut_of(own_block(instruction));
  const at::Tensor own = flat.chunk(cut.tp_size).at(cut.tp_index);
  return nn::all_gather(group(instruction.group), own, flat);
}

}  // namespace tessera::train
