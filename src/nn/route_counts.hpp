// What routers have chosen, counted while they train.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>
#include <map>
#include <vector>

namespace tessera::nn {

// Copies of tokens that experts take, of the passes of one rank. Not thread-safe.
class RouteCounts {
 public:
  // `blocks` are those with experts, by index in the model. Expert e is held by holder e / (experts / holders).
  RouteCounts(const std::vector<int>& blocks, std::int64_t experts, std::int64_t holders, std::int64_t vocabulary);

  void clear();
  // Adds a pass of a block: `tokens` i64 [batch, seq]; the rows [batch * seq] of the copies that are kept, in the order of their experts;
  // and how many copies each expert has.
  void add(int block, const at::Tensor& tokens, const at::Tensor& row_of, const at::Tensor& counts);

  const std::vector<std::int64_t>& of_experts() const { return of_experts_; }  // [blocks, experts]
  const std::vector<std::int64_t>& of_tokens() const { return of_tokens_; }    // [vocabulary, holders], of all blocks

 private:
  std::map<int, std::int64_t> layer_of_;  // by block
  std::int64_t experts_, holders_;
  std::vector<std::int64_t> of_experts_, of_tokens_;
};

}  // namespace tessera::nn
