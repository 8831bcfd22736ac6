// Internal: costs of the blocks of vision models, with what autograd keeps for them.
#pragma once

#include "model/model.hpp"

namespace tessera::model {

// Dimensions: image, patch, channels, hidden, seq.
BlockCost patch_embedding_cost(const BlockSpec& block, const BlockShard& shard);
// layer_cost(), with the workspace that nn/ needs for a layer of ViT's.
BlockCost encoder_layer_cost(const BlockSpec& block, const BlockShard& shard);
// Dimensions: hidden, classes; and `pixels`, over which the input is averaged, or `seq`, over which it is normalized and of which
// the first position counts.
BlockCost classifier_cost(const BlockSpec& block, const BlockShard& shard);
// Convolution, batch norm where there is one, ReLU, maximum over windows where there are any. Dimensions: in, out, kernel, stride,
// padding, size (of the input's side), norm, pool_kernel (0: none), pool_stride, pool_padding, data (1: the input is the image).
BlockCost conv_layer_cost(const BlockSpec& block, const BlockShard& shard);
// A residual block's kind, and those of its two parts where it is split: the branch but for its last convolution, and that convolution with
// the sum.
inline constexpr const char* kResidualBlock = "residual_block";
inline constexpr const char* kResidualBranch = "residual_branch";
inline constexpr const char* kResidualSum = "residual_sum";
// Whether the block is of one of these kinds.
bool is_residual(const BlockSpec& block);
// The cost of two 3x3 convolutions, or 1x1, 3x3 and 1x1 ones (He et al. 2016), each with batch norm. Dimensions: in, mid, out, stride,
// size, bottleneck, shortcut (1: a convolution fits the input to the output).
BlockCost residual_block_cost(const BlockSpec& block, const BlockShard& shard);

// The side of what a window leaves of a side.
std::int64_t side_after(std::int64_t size, std::int64_t kernel, std::int64_t stride, std::int64_t padding);

// Whether nn/ makes the gradient of a convolution's weight, or the convolution itself and the gradient of its maps, as a product over
// patches of the maps, on CPUs: where the output has so few pixels, over all samples, beside so many channels that copying patches is less
// than bringing weights, and their gradient back, into the order that libtorch convolves in.
enum class Gradient { of_weight, of_maps };
bool by_patches(std::int64_t pixels, std::int64_t out, Gradient gradient);

}  // namespace tessera::model
