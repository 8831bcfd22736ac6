// Internal: gathers the work of one block kernel by kernel while its forward pass is described, and derives the backward pass,
// what is kept for it and what recomputation repeats.
#pragma once

#include <string_view>

#include "model/model.hpp"

namespace tessera::model {

constexpr std::int64_t kF32Bytes = 4;

class Work {
 public:
  explicit Work(const BlockShard& shard);

  std::int64_t element() const { return element_; }  // bytes of a value that is passed on
  std::int64_t operand() const { return operand_; }  // bytes of a value that a matrix product reads: one in 8 bits

  // x [m, k] times a weight [k, n], `batch` times. Backward: the input's gradient, and the weight's, which is added to f32.
  // After `inputs_are_data` the input's gradient is left out, up to the next map.
  void linear(std::string_view name, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch = 1);
  void inputs_are_data() { data_ = true; }
  // [m, k] times [k, n], neither a weight.
  void product(std::string_view name, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k);
  // Shares of all pairs of queries and keys: those that the kernel computes, and those that BlockCost::forward and backward count.
  struct PairShares {
    double computed = 1;
    double counted = 1;
  };
  // v_dim: dimensions of a value.
  void fused_attention(std::int64_t heads, std::int64_t queries, std::int64_t keys, std::int64_t k_dim, std::int64_t v_dim,
                       PairShares shares, std::int64_t traffic);
  // To [images, pixels, out] from windows of so many input values.
  void convolution(std::string_view name, std::int64_t images, std::int64_t pixels, std::int64_t out, std::int64_t window,
                   std::int64_t input_bytes);
  // Bytes read and written in either pass.
  void pointwise(std::string_view name, std::int64_t forward_bytes, std::int64_t backward_bytes);
  void lookup(std::string_view name, std::int64_t forward_bytes, std::int64_t backward_bytes);

  // Held until the backward pass.
  void keep(std::int64_t bytes);
  // Between these stands the attention core: what selective recomputation repeats and does not keep.
  void begin_core() { in_core_ = true; }
  void end_core() { in_core_ = false; }

  // Between the operators before and behind it. Backward ones are said in the forward pass's order. One that `overlaps` stands beside
  // the gradients of the map that follows: a gather, of the map's input, beside the input's gradient, which the weight's gradient
  // waits for; others, of the input's gradient, beside the weight's.
  void exchange_forward(Exchange exchange);
  void exchange_backward(Exchange exchange);
  // In both passes, beside the operators up to close_beside().
  void open_beside(Exchange forward, Exchange backward);
  void close_beside();

  std::int64_t kept() const { return kept_; }
  std::int64_t kept_core() const { return kept_core_; }

  // FLOPs, traffic, operators and exchanges; `saved` when the block's input has `input` bytes. A gradient takes the place of what was kept
  // for it, so the weight half needs as much as was kept.
  BlockCost finish(std::int64_t input) &&;

 private:
  Operator& forward(Operator::Kind kind, std::string_view name, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k);
  Operator& backward(Operator::Kind kind, std::string_view name, std::string_view suffix, std::int64_t batch, std::int64_t m,
                     std::int64_t n, std::int64_t k);

  Recompute recompute_;
  std::int64_t element_;
  std::int64_t operand_;
  bool in_core_ = false;
  bool data_ = false;
  std::int64_t kept_ = 0;
  std::int64_t kept_core_ = 0;
  double forward_flops_ = 0;  // by the convention of BlockCost: nothing skipped
  double backward_flops_ = 0;
  std::size_t open_ = 0;        // the exchanges of either pass that open_beside has said
  std::size_t open_again_ = 0;  // of recomputation's
  std::size_t open_backward_ = 0;
  BlockCost cost_;
};

}  // namespace tessera::model
