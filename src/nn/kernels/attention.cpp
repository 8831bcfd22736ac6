#include "nn/kernels/attention.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <limits>

#include "nn/kernels/attention_avx512.hpp"
#include "nn/kernels/dispatch.hpp"
#include "nn/kernels/gemm_avx512.hpp"

namespace tessera::nn::kernels {
namespace {

struct Heads {
  at::Tensor queries, keys, values;  // views [batch, heads, seq, head_dim]
};

Heads split(const at::Tensor& qkv, const AttentionShape& s) {
  const auto view = [&](std::int64_t first_head, std::int64_t heads) {
    return qkv.narrow(1, first_head * s.head_dim, heads * s.head_dim).view({s.batch, s.seq, heads, s.head_dim}).transpose(1, 2);
  };
  return {view(0, s.heads), view(s.heads, s.kv_heads), view(s.heads + s.kv_heads, s.kv_heads)};
}

at::Tensor as_heads(const at::Tensor& rows, const AttentionShape& s) {
  return rows.view({s.batch, s.seq, s.heads, s.head_dim}).transpose(1, 2);
}

// Our kernels read rows as 32-bit units, which for bf16 are pairs along head_dim.
bool has_own_kernel(const at::Tensor& qkv, const AttentionShape& s) {
  if (qkv.scalar_type() == at::kFloat) return has_avx512();
  return has_avx512_bf16() && s.head_dim % 2 == 0;
}

// Runs body(HeadGroup<T>) for each key-value head of each sample.
template <typename T, typename Body>
void for_each_head_group(const at::Tensor& qkv, const AttentionShape& s, const at::Tensor& out_grad, const at::Tensor& out,
                         const at::Tensor& lse, const Body& body) {
  const std::int64_t shared = s.heads / s.kv_heads;
  const std::int64_t width = qkv.size(1);
  const std::int64_t out_width = s.heads * s.head_dim;
  at::parallel_for(0, s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t sample = task / s.kv_heads;
      const std::int64_t head = task % s.kv_heads;
      T* row = data<T>(qkv) + sample * s.seq * width;
      const std::int64_t first = sample * s.seq * out_width + head * shared * s.head_dim;
      body(HeadGroup<T>{s.seq, shared, s.head_dim, width, row + head * shared * s.head_dim, row + (s.heads + head) * s.head_dim,
                        row + (s.heads + s.kv_heads + head) * s.head_dim, out_width,
                        out_grad.defined() ? data<T>(out_grad) + first : nullptr, data<T>(out) + first,
                        data<float>(lse) + (sample * s.heads + head * shared) * s.seq});
    }
  });
}

}  // namespace

void attention(const at::Tensor& qkv, const AttentionShape& shape, at::Tensor& out, at::Tensor& lse) {
  if (has_own_kernel(qkv, shape)) {
    dispatch(qkv, [&](auto tag) {
      using T = decltype(tag);
      for_each_head_group<T>(qkv, shape, {}, out, lse, [](const HeadGroup<T>& group) { attend(group); });
    });
    return;
  }
  attention_plain(qkv, shape, out, lse);
}

void attention_plain(const at::Tensor& qkv, const AttentionShape& shape, at::Tensor& out, at::Tensor& lse) {
  const Heads heads = split(qkv, shape);
  // Sample by sample: ATen's results are tensors of its own, and only those of one sample are held beside ours.
  for (std::int64_t i = 0; i < shape.batch; ++i) {
    const auto one = [i](const at::Tensor& whole) { return whole.narrow(0, i, 1); };
    const auto [result, statistics] =
        at::_scaled_dot_product_flash_attention_for_cpu(one(heads.queries), one(heads.keys), one(heads.values), 0.0, true);
    one(as_heads(out, shape)).copy_(result);
    one(lse).copy_(statistics);
  }
}

void attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                        at::Tensor& qkv) {
  if (has_own_kernel(qkv, shape)) {
    dispatch(qkv, [&](auto tag) {
      using T = decltype(tag);
      for_each_head_group<T>(qkv, shape, out_grad, out, lse, [](const HeadGroup<T>& group) { attend_backward(group); });
    });
    return;
  }
  attention_backward_plain(out_grad, out, lse, shape, qkv);
}

void attention_backward_plain(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                              at::Tensor& qkv) {
  Heads heads = split(qkv, shape);
  for (std::int64_t i = 0; i < shape.batch; ++i) {
    const auto one = [i](const at::Tensor& whole) { return whole.narrow(0, i, 1); };
    const auto [queries, keys, values] =
        at::_scaled_dot_product_flash_attention_for_cpu_backward(one(as_heads(out_grad, shape)), one(heads.queries), one(heads.keys),
                                                                 one(heads.values), one(as_heads(out, shape)), one(lse), 0.0, true);
    one(heads.queries).copy_(queries);
    one(heads.keys).copy_(keys);
    one(heads.values).copy_(values);
  }
}

void attention_with_cache(const at::Tensor& qkv, const AttentionShape& shape, std::int64_t position, at::Tensor& keys, at::Tensor& values,
                          at::Tensor& out) {
  const std::int64_t seen = position + shape.seq;
  ensure(seen <= keys.size(2), text("the key-value cache holds ", keys.size(2), " positions and ", seen, " are needed"));
  const Heads heads = split(qkv, shape);
  keys.narrow(2, position, shape.seq).copy_(heads.keys);
  values.narrow(2, position, shape.seq).copy_(heads.values);
  std::optional<at::Tensor> mask;
  if (position > 0 && shape.seq > 1) {
    const float hidden = -std::numeric_limits<float>::infinity();
    mask = at::full({shape.seq, seen}, hidden, at::kFloat).triu(position + 1).to(qkv.scalar_type());
  }
  const at::Tensor result = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      heads.queries, keys.narrow(2, 0, seen), values.narrow(2, 0, seen), 0.0, position == 0 && shape.seq > 1, mask));
  as_heads(out, shape).copy_(result);
}

}  // namespace tessera::nn::kernels
