// Internal: what tensor-parallel ranks share and exchange.
#pragma once

#include "nn/block.hpp"

namespace tessera::nn {

// A rank's part of the dimension `key`, which cannot be padded. Throws internal when the degree does not divide it.
std::int64_t divided(const model::BlockSpec& spec, const std::string& key, int degree);

// The exchanges do nothing when the pass has no group.
// In place; the tensor is contiguous, f32 or bf16.
void all_reduce(at::Tensor& tensor, const Pass& pass, comm::Reduction reduction = comm::Reduction::sum);
// [rows, width] of every rank -> [rows, ranks * width], columns in rank order.
at::Tensor all_gather_columns(const at::Tensor& tensor, const Pass& pass);

}  // namespace tessera::nn
