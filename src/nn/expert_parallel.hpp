// Internal: how rows of tokens go to the ranks that hold their experts, and back.
#pragma once

#include <ATen/core/Tensor.h>
#include <vector>

#include "nn/block.hpp"
#include "nn/exchange.hpp"

namespace tessera::nn {

// Consecutive rows of what a rank has received, all for one of its experts.
struct ExpertRows {
  std::int64_t expert = 0;  // of this rank
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// Rows on their way, beside computing until finish().
class PendingRows {
 public:
  PendingRows(at::Tensor source, at::Tensor rows, std::vector<Exchange> exchanges)
      : source_(std::move(source)), rows_(std::move(rows)), exchanges_(std::move(exchanges)) {}
  // Waits for them.
  at::Tensor finish(const Pass& pass);

 private:
  at::Tensor source_;  // lives as long as the exchange
  at::Tensor rows_;
  std::vector<Exchange> exchanges_;
};

// Where each row goes. A rank holds consecutive experts; its rows stand in the order of their experts, so that those for one rank are
// consecutive. What it receives stands by rank, and of each rank by expert.
class ExpertRoutes {
 public:
  // `counts` i64 [experts]: how many rows of this rank each expert of all ranks takes. Tells the other ranks.
  ExpertRoutes(const at::Tensor& counts, const Pass& pass);

  // i64 [ranks, experts of a rank]: what this rank has received from each. The other constructor goes without telling.
  const at::Tensor& received_counts() const { return received_counts_; }
  ExpertRoutes(const at::Tensor& counts, at::Tensor received_counts);

  std::int64_t received() const { return received_; }
  const std::vector<ExpertRows>& segments() const { return segments_; }  // none without rows

  // [rows of this rank, ...] in their order -> [received, ...], and the other way round. Contiguous, f32 or bf16. The tensor itself where
  // this rank holds all experts.
  PendingRows to_experts(const at::Tensor& rows, const Pass& pass) const;
  PendingRows from_experts(const at::Tensor& rows, const Pass& pass) const;

 private:
  void add_up(const at::Tensor& counts);

  at::Tensor received_counts_;
  std::int64_t received_ = 0;
  std::vector<std::int64_t> to_;    // rows for each rank
  std::vector<std::int64_t> from_;  // rows of each rank
  std::vector<ExpertRows> segments_;
};

}  // namespace tessera::nn
