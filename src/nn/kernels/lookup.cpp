#include "nn/kernels/lookup.hpp"

#include <ATen/Parallel.h>
#include <algorithm>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"

namespace tessera::nn::kernels {
namespace {

TESSERA_MULTIVERSION void add_row(const float* x, float* y, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) y[i] += x[i];
}
TESSERA_MULTIVERSION void add_row(const Bf16* x, float* y, std::int64_t width) {
  for (std::int64_t i = 0; i < width; ++i) y[i] += load(x[i]);
}

}  // namespace

void check_tokens(const at::Tensor& values, std::int64_t least, std::int64_t vocab, const char* what) {
  const at::Tensor on_host = values.to(at::kCPU);
  const std::int64_t* ids = data<std::int64_t>(on_host);
  const std::int64_t* bad = std::find_if(ids, ids + on_host.numel(), [&](std::int64_t id) { return id < least || id >= vocab; });
  if (bad == ids + on_host.numel()) return;
  throw Error(ErrorCode::corrupt, text(what, " of the batch is ", *bad, ", outside the model's vocabulary of ", vocab), {},
              text(what, " from ", least, " to ", vocab - 1), "check that the data was tokenized for this vocabulary");
}

void lookup(const at::Tensor& table, const at::Tensor& tokens, std::int64_t first_row, at::Tensor& out) {
  if (!use_cpu_kernels(table)) return aten::lookup(table, tokens, first_row, out);
  const std::int64_t width = table.size(1);
  const std::int64_t rows = table.size(0);
  const std::int64_t* ids = data<std::int64_t>(tokens);
  dispatch(table, [&](auto tag) {
    using T = decltype(tag);
    at::parallel_for(0, tokens.numel(), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        const std::int64_t row = ids[t] - first_row;
        T* place = data<T>(out) + t * width;
        if (row >= 0 && row < rows) {
          std::copy_n(data<T>(table) + row * width, width, place);
        } else {
          std::fill_n(place, width, T{});
        }
      }
    });
  });
}

void lookup_backward(const at::Tensor& gradient, const at::Tensor& tokens, std::int64_t first_row, const at::Tensor& table_grad) {
  if (!use_cpu_kernels(gradient)) return aten::lookup_backward(gradient, tokens, first_row, table_grad);
  const std::int64_t width = table_grad.size(1);
  const std::int64_t rows = table_grad.size(0);
  const std::int64_t* ids = data<std::int64_t>(tokens);
  dispatch(gradient, [&](auto tag) {
    using T = decltype(tag);
    // Threads share the columns, not the tokens: no two write the same place, and each place is summed in token order.
    at::parallel_for(0, width, 64, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = 0; t < tokens.numel(); ++t) {
        const std::int64_t row = ids[t] - first_row;
        if (row < 0 || row >= rows) continue;
        add_row(data<T>(gradient) + t * width + begin, data<float>(table_grad) + row * width + begin, end - begin);
      }
    });
  });
}

}  // namespace tessera::nn::kernels
