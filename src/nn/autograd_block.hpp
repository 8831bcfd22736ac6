// Blocks of which only the forward pass is written: libtorch's autograd makes the gradients.
#pragma once

#include <functional>
#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// inputs, parameters (both as BlockSpec lists them) -> outputs. Differentiable operators alone, nothing in place, and the same numbers
// whenever it is called with the same tensors. A block whose output is "loss" returns what Block::forward does. Behind its outputs it
// returns, of each of its buffers (ParameterSpec::buffer_momentum) in their order, what this pass's samples show, summed over them: f32, of
// the buffer's shape.
using ForwardFunction = std::function<Tensors(const Tensors& inputs, const Tensors& parameters, const Pass& pass)>;

// From the forward to the backward pass it keeps its inputs, its outputs and what autograd keeps for them. Both halves of the gradient are
// made by backward_input; backward_weight adds what was made for the parameters, which is held until then.
std::unique_ptr<Block> make_autograd_block(const model::BlockSpec& spec, ForwardFunction forward);

// The same for all blocks of a kind. Their parameters stand whole on each rank: no plan cuts them by tensor parallelism. Throws
// invalid_config where there is a block of this kind.
using BlockForward =
    std::function<Tensors(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass)>;
void register_forward(const std::string& kind, BlockForward forward);

}  // namespace tessera::nn
