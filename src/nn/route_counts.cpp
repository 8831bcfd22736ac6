#include "nn/route_counts.hpp"

#include <algorithm>

namespace tessera::nn {

RouteCounts::RouteCounts(const std::vector<int>& blocks, std::int64_t experts, std::int64_t holders, std::int64_t vocabulary)
    : experts_(experts),
      holders_(holders),
      of_experts_(blocks.size() * static_cast<std::size_t>(experts)),
      of_tokens_(static_cast<std::size_t>(vocabulary * holders)) {
  for (const int block : blocks) layer_of_.emplace(block, static_cast<std::int64_t>(layer_of_.size()));
}

void RouteCounts::clear() {
  std::fill(of_experts_.begin(), of_experts_.end(), 0);
  std::fill(of_tokens_.begin(), of_tokens_.end(), 0);
}

void RouteCounts::add(int block, const at::Tensor& tokens, const at::Tensor& row_of, const at::Tensor& counts) {
  const at::Tensor tokens_here = tokens.to(at::kCPU).contiguous();
  const at::Tensor rows_here = row_of.to(at::kCPU).contiguous();
  const at::Tensor counts_here = counts.to(at::kCPU).contiguous();
  const std::int64_t* const token = tokens_here.const_data_ptr<std::int64_t>();
  const std::int64_t* row = rows_here.const_data_ptr<std::int64_t>();
  const std::int64_t* const count = counts_here.const_data_ptr<std::int64_t>();
  std::int64_t* const of_expert = of_experts_.data() + layer_of_.at(block) * experts_;
  for (std::int64_t expert = 0; expert < experts_; ++expert) {
    of_expert[expert] += count[expert];
    const std::int64_t holder = expert / (experts_ / holders_);
    for (const std::int64_t* const end = row + count[expert]; row != end; ++row) ++of_tokens_[token[*row] * holders_ + holder];
  }
}

}  // namespace tessera::nn
