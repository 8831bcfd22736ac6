// Internal: the blocks of models that read clicks (DLRM, Naumov et al. 2019; DeepFM, Guo et al. 2017; Wide & Deep, Cheng et al. 2016;
// DCN-v2, Wang et al. 2021; DIN, Zhou et al. 2018). The forward passes are those of blocks by autograd (nn/autograd_block.hpp).
#pragma once

#include <memory>

#include "nn/block.hpp"

namespace tessera::nn {

// The rows of the samples' keys, which parameter servers hold: no parameter of this block. It passes on `rows` of the batch, f32 [samples,
// tables, dim], of several look-ups in a table their sum, and writes their gradient into `row_gradients`, of the same shape. Whoever has
// pulled the rows pushes it (train/tables.hpp). Of a model with a history it passes on `history_rows` of the batch, too, f32 [samples,
// history, dim], zeros where there is no key, and writes into `history_gradients`.
std::unique_ptr<Block> make_embedding_tables(const model::BlockSpec& spec, const BlockPlacement& placement);

// Dot products of all pairs of the bottom network's output and the rows, behind that output: [samples, dim + pairs]. With dimension
// `machine` 1 a factorization machine: of each row the first value is a weight and the others a vector; [samples, tables * dim + dense] of
// all vectors and the batch's `dense`, and [samples, 1] of what the machine adds to the logit: weights, and, unless dimension `wide` is 1,
// dot products of all pairs of vectors.
Tensors interaction(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

// All rows and the batch's `dense`, one beside the other: [samples, tables * dim + dense].
Tensors features(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

// x0 * (W x + b) + x of the features x0 and what the layer before has made, x; without a second input x is x0. With dimension `rank` above
// 0, W is the product of two parameters.
Tensors cross(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

// The sum of a history's rows, each weighted by what linear maps with sigmoids between them make of the row, the target's row (of table
// `target`), their difference and their product. With dimension `softmax` 1 weights of a sample add up to 1. Keys that are not there have
// no weight. Returns the rows of all tables, that sum and the batch's `dense`, one beside the other: [samples, (tables + 1) * dim + dense].
Tensors target_attention(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

// Linear maps with ReLU between them. With dimension `joined` 1 it reads all its inputs, one beside the other. Otherwise it reads its first
// input, or `dense` of the batch. With dimension `loss` 1 it ends the model: its output, and a second input where there is one, are the
// logit of a click, and the loss is the binary cross-entropy with `labels` of the batch. With training == false it returns behind the loss
// what Block::forward says of clicks.
Tensors perceptron(const model::BlockSpec& block, const Tensors& inputs, const Tensors& parameters, const Pass& pass);

}  // namespace tessera::nn
