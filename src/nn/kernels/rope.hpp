// Rotary position embedding in Hugging Face Llama's convention: dimension i pairs with i + head_dim/2 (rotate_half).
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace tessera::nn::kernels {

// Position p turns pair i by p * frequency, frequency = theta^(-2i/head_dim). Scaled as Llama 3.1 does it (transformers' rope_type
// "llama3"): a frequency whose wave is longer than original_seq / low_freq is divided by `factor`, one whose wave is shorter than
// original_seq / high_freq stays, and between them a line joins the two.
//
// By YaRN (Peng et al. 2023, section 3.2; "yarn"): pairs that turn more than beta_fast times within original_seq stay, those that turn less
// than beta_slow times are divided by `factor`, and between them a line over the pairs joins the two.
struct RopeFrequencies {
  double theta = 10000.0;
  double factor = 1.0;  // 1: not scaled
  double low_freq = 1.0;
  double high_freq = 4.0;
  double original_seq = 8192;
  bool yarn = false;
  double beta_fast = 32;
  double beta_slow = 1;
  bool whole_pairs = true;  // the line begins and ends at a pair
  double amplitude = 1;     // what cosines and sines are multiplied by
};

// cos and sin of the angles, times the amplitude: f32 [2, positions, head_dim/2].
at::Tensor rope_table(std::int64_t positions, std::int64_t head_dim, const RopeFrequencies& frequencies, at::Device device);

// Rotates the first `heads` heads of each row of x [batch*seq, >= heads*head_dim] in place; row r stands at
// positions[r] (i64) or, where these are undefined, at `position` + r % seq. `inverse` turns back by the same amplitude: the gradient.
void rope(at::Tensor& x, std::int64_t heads, std::int64_t head_dim, std::int64_t seq, std::int64_t position, const at::Tensor& table,
          bool inverse, const at::Tensor& positions = {});

}  // namespace tessera::nn::kernels
