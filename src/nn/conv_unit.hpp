// Internal: a convolution and, where there is one, the batch norm behind it.
#pragma once

#include <optional>

#include "nn/batch_norm.hpp"

namespace tessera::nn {

// Maps are [samples, channels, side, side], padded so that a stride of 1 leaves the side as it is.
class ConvUnit {
 public:
  // What is kept of a micro-batch, by place, and from kNorm on what the norm keeps. kOutputGrad, that of the convolution, is there after
  // the input half of the backward pass.
  enum Kept { kInput, kOutputGrad, kNorm, kKeptCount = kNorm + BatchNorm::kKeptCount };

  struct Form {
    std::int64_t stride = 1;
    bool biased = false;
    bool normalized = true;
  };
  explicit ConvUnit(Form form);
  void bind(ParameterRow& parameters);

  at::Tensor forward(const at::Tensor& maps, std::span<at::Tensor> kept, const Pass& pass) const;
  at::Tensor backward_input(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const;
  // The same for maps that are data and need no gradient.
  void end_at_data(const at::Tensor& grad, std::span<at::Tensor> kept, const Pass& pass) const;
  void backward_weight(std::span<at::Tensor> kept, const Pass& pass) const;

 private:
  const Parameter& weight() const { return own_.front(); }

  Form form_;
  std::optional<BatchNorm> norm_;
  std::span<const Parameter> own_;  // weight, and bias or none
};

}  // namespace tessera::nn
