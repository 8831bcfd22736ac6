// Internal: linear maps that share an input, run as one product where their weights lie side by side.
#pragma once

#include <span>
#include <vector>

#include "nn/block.hpp"

namespace tessera::nn {

// y = [x W0^T + b0 | x W1^T + b1 | ...]. Weights are [out, in], or stored as [in, out]; x is [rows, in], y [rows, sum of out]; both may be
// column slices.
class StackedLinear {
 public:
  enum class Stored { out_in, in_out };
  explicit StackedLinear(Stored stored = Stored::out_in) : stored_(stored) {}

  // Neighbours [out, in] whose values and gradients are adjacent in memory become one matrix. `biases`: one for each weight, or none.
  void bind(std::span<const Parameter> weights, std::span<const Parameter> biases = {});

  std::int64_t out_width() const { return out_width_; }
  void forward(const at::Tensor& x, at::Tensor& y) const;
  // dx = dy W (overwritten).
  void backward_input(const at::Tensor& dy, at::Tensor& dx) const;
  // W's gradient += dy^T x, b's the sum of dy's rows.
  void backward_weight(const at::Tensor& dy, const at::Tensor& x) const;

 private:
  struct Part {
    at::Tensor value;         // as it is stored; of a bias [out]
    at::Tensor grad;          // f32
    std::int64_t column = 0;  // where its output starts
    std::int64_t width = 0;   // of its output
  };
  at::Tensor out_in(const Part& part) const;

  Stored stored_;
  std::vector<Part> parts_;
  std::vector<Part> biases_;
  std::int64_t out_width_ = 0;
};

// How the block's dimensions say that its maps are stored.
StackedLinear::Stored stored_maps(const model::BlockSpec& spec);

}  // namespace tessera::nn
