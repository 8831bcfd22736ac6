// Internal: what tensor-parallel ranks share and exchange.
#pragma once

#include <ATen/ops/empty.h>
#include <functional>
#include <optional>
#include <span>

#include "nn/block.hpp"
#include "nn/exchange.hpp"

namespace tessera::nn {

// A rank's part of the dimension `key`, which cannot be padded. Throws internal when the degree does not divide it.
std::int64_t divided(const model::BlockSpec& spec, const std::string& key, int degree);

// Waits for all of them, and notes the time as one of the pass's exchanges.
void wait(std::span<const Exchange> exchanges, const Pass& pass);
void wait(const Exchange& exchange, const Pass& pass);

// The exchanges do nothing when the pass has no group.
// In place; the tensor is contiguous, f32 or bf16.
void all_reduce(at::Tensor& tensor, const Pass& pass, comm::Reduction reduction = comm::Reduction::sum);
// [rows, width] of every rank -> [rows, ranks * width], columns in rank order.
at::Tensor all_gather_columns(const at::Tensor& tensor, const Pass& pass);

// Rows of the batch, and of them those of this rank, which are fewer where the pass is sequence-parallel.
struct Rows {
  // The rows of activations [batch, seq of this rank, ...].
  Rows(const at::Tensor& activations, const Pass& pass);
  std::int64_t batch, seq;
  std::int64_t parts;  // into which sequence parallelism cuts them
  std::int64_t part;   // which of them is this rank's
  at::TensorOptions options;
  std::int64_t count() const { return batch * seq; }
  std::int64_t own() const { return count() / parts; }
  std::int64_t first() const { return part * own(); }  // of this rank's
  at::Tensor empty(std::int64_t width) const { return at::empty({count(), width}, options); }
  at::Tensor empty_own(std::int64_t width) const { return at::empty({own(), width}, options); }
  at::TensorOptions f32() const { return options.dtype(at::kFloat); }
};

// What enters a map whose outputs are divided: this rank's rows -> all rows, the tensor itself where it has them.
at::Tensor all_rows(const at::Tensor& own, const Pass& pass);
// What leaves a map whose inputs are divided, a part of the sum on each rank -> the sum in this rank's rows. It may be `partial` itself.
at::Tensor own_sum(at::Tensor partial, const Pass& pass);
// The same for a product of `x` [rows, any] with `width` columns: product(some rows of x, out) fills those rows. A sum over whole tensors
// is made in model::summed_pieces, each beside the product of the next piece.
at::Tensor own_sum_of(at::Tensor x, std::int64_t width, const Pass& pass,
                      const std::function<void(const at::Tensor& rows, at::Tensor& out)>& product);

// An exchange that goes on beside computing until finish().
class PendingExchange {
 public:
  static PendingExchange all_rows(at::Tensor own, const Pass& pass);
  // Sums over the peers, in place.
  static PendingExchange all_reduce(at::Tensor sums, const Pass& pass);
  // Waits for it; its result.
  at::Tensor finish(const Pass& pass);

 private:
  at::Tensor input_;  // lives as long as the exchange
  at::Tensor result_;
  std::optional<Exchange> exchange_;  // none where there is nothing to exchange
};

}  // namespace tessera::nn
