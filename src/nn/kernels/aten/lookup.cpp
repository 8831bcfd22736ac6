#include "nn/kernels/lookup.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/index_put.h>
#include <ATen/ops/index_select.h>

#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {
namespace {

struct Places {
  at::Tensor rows;     // i64 [tokens], 0 for those outside
  at::Tensor outside;  // bool [tokens, 1]
};

Places places_of(const at::Tensor& tokens, std::int64_t first_row, std::int64_t row_count) {
  const at::Tensor rows = tokens.flatten() - first_row;
  const at::Tensor outside = rows.lt(0).bitwise_or_(rows.ge(row_count));
  return {rows.masked_fill(outside, 0), outside.unsqueeze(1)};
}

}  // namespace

void lookup(const at::Tensor& table, const at::Tensor& tokens, std::int64_t first_row, at::Tensor& out) {
  const Places places = places_of(tokens, first_row, table.size(0));
  at::index_select_out(out, table, 0, places.rows);
  out.masked_fill_(places.outside, 0);
}

void lookup_backward(const at::Tensor& gradient, const at::Tensor& tokens, std::int64_t first_row, const at::Tensor& table_grad) {
  const Places places = places_of(tokens, first_row, table_grad.size(0));
  const at::Tensor rows = gradient.to(at::kFloat).masked_fill(places.outside, 0);
  // On a GPU ATen sorts the places first.
  if (table_grad.is_cuda()) return void(at::Tensor(table_grad).index_put_({places.rows}, rows, /*accumulate=*/true));
  // Elsewhere it adds to rows at given places in any order, but for this operator.
  table_grad.add_(at::embedding_dense_backward(rows, places.rows, table_grad.size(0), -1, false));
}

}  // namespace tessera::nn::kernels::aten
