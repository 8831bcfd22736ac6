#include "nn/sequence.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <vector>

namespace tessera::nn {

at::Tensor SequenceCut::own(const at::Tensor& whole) const {
  if (size == 1) return whole;
  const std::int64_t seq = whole.size(1);
  ensure(seq % (2 * size) == 0, text("twice ", size, " context-parallel ranks do not divide a sequence of ", seq));
  const std::int64_t chunk = seq / (2 * size);
  return at::cat({whole.narrow(1, rank * chunk, chunk), whole.narrow(1, (2 * size - 1 - rank) * chunk, chunk)}, 1);
}

at::Tensor SequenceCut::positions(std::int64_t seq, at::Device device) const {
  return own(at::arange(seq, at::TensorOptions(device).dtype(at::kLong)).unsqueeze(0)).squeeze(0);
}

at::Tensor SequenceCut::parts(const at::Tensor& whole) const {
  std::vector<at::Tensor> out;
  for (int other = 0; other < size; ++other) out.push_back(SequenceCut{size, other}.own(whole));
  return at::stack(out);
}

at::Tensor SequenceCut::whole(const at::Tensor& parts) const {
  const std::int64_t chunk = parts.size(2) / 2;
  std::vector<at::Tensor> chunks;
  for (int other = 0; other < size; ++other) chunks.push_back(parts[other].narrow(1, 0, chunk));
  for (int other = size - 1; other >= 0; --other) chunks.push_back(parts[other].narrow(1, chunk, chunk));
  return at::cat(chunks, 1);
}

SequenceCut sequence_cut(const Pass& pass) {
  return pass.context_group ? SequenceCut{pass.context_group.size(), pass.context_group.rank()} : SequenceCut{};
}

Batch own_part(const Batch& whole, const SequenceCut& cut) {
  if (cut.size == 1) return whole;
  Batch own = whole;
  for (auto& [name, tensor] : own.tensors) tensor = cut.own(tensor);
  if (const at::Tensor positions = whole.find("positions"); positions.defined()) own.tensors["whole_positions"] = positions;
  return own;
}

}  // namespace tessera::nn
