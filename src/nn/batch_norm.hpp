// Internal: batch normalization (Ioffe and Szegedy 2015) of maps as an operator that autograd differentiates.
#pragma once

#include "nn/block.hpp"

namespace tessera::nn {

// Of one norm, [channels] each, as torchvision names them.
struct BatchNorm {
  at::Tensor weight;
  at::Tensor bias;
  at::Tensor running_mean;
  at::Tensor running_var;
};

// maps: [samples, channels, height, width]. A pass of training normalizes each channel with the mean and the biased variance of its own
// samples and pixels: those of this rank's micro-batch. Other passes use the running values.
//
// Appends to `shown`, as buffers are shown (nn/autograd_block.hpp), the mean and the unbiased variance, each times the samples. So a step
// moves the running values once, towards the mean of its passes' statistics weighted by their samples: with one micro-batch on one device
// that is what PyTorch does. One value a channel has a variance of 0.
at::Tensor batch_norm(const at::Tensor& maps, const BatchNorm& norm, const Pass& pass, Tensors& shown);

}  // namespace tessera::nn
