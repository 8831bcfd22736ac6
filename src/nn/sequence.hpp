// Which part of each sequence a context-parallel rank holds.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

#include "nn/block.hpp"

namespace tessera::nn {

// A sequence is cut into 2 * size chunks of equal length. Rank r holds chunks r and 2 * size - 1 - r, in this order, so that a causal mask
// leaves all ranks equally many pairs of queries and keys (Llama 3, Dubey et al. 2024, section 3.3.2). 2 * size divides the sequence.
// Example: of a sequence of 8 tokens, rank 0 of 2 holds positions 0 1 6 7, and rank 1 holds 2 3 4 5.
struct SequenceCut {
  int size = 1;
  int rank = 0;

  // [batch, seq, ...] -> this rank's [batch, seq / size, ...].
  at::Tensor own(const at::Tensor& whole) const;
  // The positions, i64 [seq / size], of what this rank holds of a sequence.
  at::Tensor positions(std::int64_t seq, at::Device device) const;
  // [batch, seq, ...] -> [size, batch, seq / size, ...], what each rank holds, and the other way round.
  at::Tensor parts(const at::Tensor& whole) const;
  at::Tensor whole(const at::Tensor& parts) const;
};

// That of the pass: one of one where it has no context group.
SequenceCut sequence_cut(const Pass& pass);

// This rank's part of a batch of whole sequences.
Batch own_part(const Batch& whole, const SequenceCut& cut);

}  // namespace tessera::nn
