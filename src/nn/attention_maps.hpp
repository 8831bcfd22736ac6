// Internal: the maps from a layer's normalized input to what its attention reads.
#pragma once

#include <memory>
#include <span>

#include "nn/parameter_row.hpp"
#include "nn/tensor_parallel.hpp"

namespace tessera::nn {

// They make queries, keys and values, rotated, of this tensor-parallel rank's heads, beside each other in each row:
// [rows, (heads + 2 * kv_heads) * head_dim]. Behind values that are narrower than heads there are zeros.
class AttentionMaps {
 public:
  // Places for what is kept of a micro-batch.
  static constexpr std::size_t kKeptCount = 8;

  virtual ~AttentionMaps() = default;
  virtual void bind(ParameterRow& parameters) = 0;
  // The parameters behind that of the output's map.
  virtual void bind_rest(ParameterRow&) {}

  // normed: all rows [rows, hidden].
  virtual at::Tensor forward(const at::Tensor& normed, const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) = 0;
  // What forward returned in a pass that trained. It may be overwritten once, with its gradient.
  virtual at::Tensor again(const Rows& rows, std::span<at::Tensor> kept, const Pass& pass) = 0;
  // Of that gradient, which it may overwrite: the normalized input's, this rank's rows. `shared_grads` [shared_count()], f32, is written
  // with this rank's part of the gradients of shared().
  virtual at::Tensor backward_input(at::Tensor grads, const Rows& rows, std::span<at::Tensor> kept, const at::Tensor& shared_grads,
                                    const Pass& pass) = 0;
  // Whether backward_weight reads the normalized input.
  virtual bool reads_input_again() const = 0;
  virtual void backward_weight(const at::Tensor& normed, std::span<at::Tensor> kept) const = 0;

  // Parameters that every tensor-parallel rank holds whole, and of whose gradients it has the part of its own heads.
  virtual std::vector<Parameter> shared() const = 0;
  virtual std::int64_t shared_count() const = 0;  // of their elements
};

// By the block's dimensions. The plain ones: one map each for queries, keys and values, with biases, norms of heads, and rotary positions
// or none.
std::unique_ptr<AttentionMaps> make_attention_maps(const model::BlockSpec& spec, const BlockPlacement& placement);
// Multi-head latent attention (DeepSeek-V2, 2024, section 2.1): with "kv_lora", keys and values, and with "q_lora" queries, come from
// normalized vectors of low rank; a part of each query, and one key for all heads, is rotated. Autograd makes the gradients.
std::unique_ptr<AttentionMaps> make_latent_maps(const model::BlockSpec& spec, const BlockPlacement& placement);

}  // namespace tessera::nn
