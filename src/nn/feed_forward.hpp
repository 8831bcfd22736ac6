// Internal: what stands in the second half of a decoder layer, between its norm and its sum.
#pragma once

#include <memory>
#include <span>

#include "nn/layer_attention.hpp"

namespace tessera::nn {

// Rows are those of the micro-batch; `own` ones are this rank's where sequence parallelism cuts them.
class FeedForward {
 public:
  virtual ~FeedForward() = default;
  virtual void bind(ParameterRow& parameters) = 0;
  // How many tensors it keeps of a micro-batch; `kept` has as many places in what follows, undefined at first.
  virtual std::size_t kept_count() const = 0;

  // The output, this rank's rows, for the normalized input, this rank's rows.
  virtual at::Tensor forward(at::Tensor normed, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) = 0;
  // The gradient of the normalized input, from that of the output; this rank's rows of both.
  virtual at::Tensor backward_input(const at::Tensor& grad, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) = 0;
  // The weight half in two steps: of the maps that its output comes from, and then of those that read the normalized input, all rows of
  // which may be on their way.
  virtual void backward_last_weights(std::span<at::Tensor> kept) = 0;
  virtual void backward_first_weights(PendingExchange normed, std::span<at::Tensor> kept, const Pass& pass) = 0;
};

// The product of a gate and of a second map, then a third (SwiGLU, Shazeer 2020).
std::unique_ptr<FeedForward> make_swiglu(const model::BlockSpec& spec, const BlockPlacement& placement);
// GELU between two maps (Hendrycks and Gimpel 2016) or, with "gated", in a gate as in SwiGLU.
std::unique_ptr<FeedForward> make_gelu(const model::BlockSpec& spec, const BlockPlacement& placement);
// Routed experts, each a SwiGLU (Shazeer et al. 2017; Jiang et al. 2024, section 2.1).
std::unique_ptr<FeedForward> make_experts(const model::BlockSpec& spec, const BlockPlacement& placement);

}  // namespace tessera::nn
