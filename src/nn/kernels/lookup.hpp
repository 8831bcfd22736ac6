// Rows of an embedding table, and their gradient.
#pragma once

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace tessera::nn::kernels {

// Throws corrupt, naming the value, when one of the i64 values is not in [least, vocab).
void check_tokens(const at::Tensor& values, std::int64_t least, std::int64_t vocab, const char* what);

// out [tokens, width] = table[token - first_row]; 0 for tokens outside the table's rows. Tokens are i64 >= 0.
void lookup(const at::Tensor& table, const at::Tensor& tokens, std::int64_t first_row, at::Tensor& out);
// table_grad [rows, width] f32 += the rows of `gradient`, in the order of the tokens whatever the thread count.
void lookup_backward(const at::Tensor& gradient, const at::Tensor& tokens, std::int64_t first_row, const at::Tensor& table_grad);

}  // namespace tessera::nn::kernels
