// Internal: tensors, and the gradients of tensors, across one block (model/tensor_flow.hpp).
#pragma once

#include "model/tensor_flow.hpp"
#include "nn/block.hpp"

namespace tessera::train {

// What the block reads of the tensors before it.
nn::Tensors read_by(const model::BlockFlow& flow, const nn::Tensors& before);
// All tensors before the next block.
nn::Tensors tensors_after(const model::BlockFlow& flow, const nn::Tensors& before, const nn::Tensors& outputs);
// The gradients of the block's outputs, of those of all tensors before the next block.
nn::Tensors gradients_of_outputs(const model::BlockFlow& flow, const nn::Tensors& after);
// The gradients of all tensors before the block: what passes it and is read by it too has the sum of both.
nn::Tensors gradients_before(const model::BlockFlow& flow, const nn::Tensors& after, const nn::Tensors& inputs);

}  // namespace tessera::train
