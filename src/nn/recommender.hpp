// Internal: the blocks of models that read clicks (DLRM, Naumov et al. 2019; DeepFM, Guo et al. 2017). The forward passes are those of
// blocks by autograd (nn/autograd_block.hpp).
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// The rows of the samples' keys, which parameter servers hold: no parameter of this block. It passes on `rows` of the batch, f32 [samples,
// tables, dim], of several look-ups in a table their sum, and writes their gradient into `row_gradients`, of the same shape. Whoever has
// pulled the rows pushes it (train/tables.hpp).
std::unique_ptr<Block> make_embedding_tables(const model::BlockSpec& spec, const BlockPlacement& placement);

// Dot products of all pairs of the bottom network's output and the rows, behind that output: [samples, dim + pairs]. With dimension
// `machine` 1 a factorization machine: of each row the first value is a weight and the others a vector; [samples, tables * dim + dense] of
// all vectors and the batch's `dense`, and [samples, 1] of what the machine adds to the logit: weights, and dot products of all pairs of
// vectors.
Tensors interaction(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

// Linear maps with ReLU between them. It reads its first input, or `dense` of the batch. With dimension `loss` 1 it ends the model: its
// output, and a second input where there is one, are the logit of a click, and the loss is the binary cross-entropy with `labels` of the
// batch. With training == false it returns behind the loss what Block::forward says of clicks.
Tensors perceptron(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

}  // namespace tessera::nn
