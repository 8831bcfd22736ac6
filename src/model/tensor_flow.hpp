// Which tensors pass between the blocks of a model: what one block makes and a later one reads, by name. A block reads the tensor of that
// name that was made last. What only a later block reads passes the blocks between: a skip, or an encoder's output beside its decoder.
#pragma once

#include <vector>

#include "model/model.hpp"

namespace tessera::model {

// The passage of one block.
struct BlockFlow {
  std::vector<TensorSpec> before;  // between the block before it and this one, in the order in which they were made; none before the first
  std::vector<int> reads;          // indices into `before`, by BlockSpec::inputs
  // For each tensor between this block and the next one: the index into BlockSpec::outputs if this block makes it, or -1 - the index into
  // `before` if it passes by.
  std::vector<int> after;

  bool passes(std::size_t tensor) const { return after[tensor] < 0; }
  std::size_t passed(std::size_t tensor) const { return static_cast<std::size_t>(-1 - after[tensor]); }
  std::size_t made(std::size_t tensor) const { return static_cast<std::size_t>(after[tensor]); }
};

// By block. Throws invalid_config, which names the block, when it reads a tensor that no block before it makes, or in another shape, and
// when no block reads what it makes, unless that is a loss, which
// has no dimensions; nothing reads what the last block makes.
std::vector<BlockFlow> tensor_flow(const ModelSpec& model);

// Elements of one sample of all tensors before each block.
std::vector<std::int64_t> elements_before(const std::vector<BlockFlow>& flow);

}  // namespace tessera::model
