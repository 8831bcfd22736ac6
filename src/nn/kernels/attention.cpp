#include "nn/kernels/attention.hpp"

#include <ATen/Parallel.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/attention_avx512.hpp"
#include "nn/kernels/device.hpp"
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
bool has_own_kernel(const at::Tensor& rows, std::int64_t head_dim) {
  if (rows.scalar_type() == at::kFloat) return has_avx512();
  return has_avx512_bf16() && head_dim % 2 == 0;
}

// The offset at which the first query sees the last key.
std::int64_t sees_all(std::int64_t keys) { return keys - 1; }

bool is_windowed(std::int64_t window, std::int64_t seq) { return window > 0 && window < seq; }

// What is added to the scores [queries, keys] of queries that stand at `position` and on: 0 for keys that a query sees.
at::Tensor mask_of(std::int64_t queries, std::int64_t keys, std::int64_t position, std::int64_t window, at::ScalarType type) {
  const at::Tensor hidden = at::full({queries, keys}, -std::numeric_limits<float>::infinity(), at::kFloat);
  const at::Tensor later = hidden.triu(position + 1);
  return (window > 0 ? later.add(hidden.tril(position - window)) : later).to(type);
}

// ATen's attention leaves out what the causal mask hides and nothing more. Under a window it is given some queries at a time, with the keys
// that they see between them.
struct Piece {
  std::int64_t query, queries;
  std::int64_t key, keys;

  at::Tensor queries_of(const at::Tensor& heads) const { return heads.narrow(2, query, queries); }
  at::Tensor keys_of(const at::Tensor& heads) const { return heads.narrow(2, key, keys); }
  at::Tensor mask(std::int64_t window, at::ScalarType type) const { return mask_of(queries, keys, query - key, window, type); }
};

// Of a segment of so many rows.
std::vector<Piece> pieces_of(std::int64_t rows, std::int64_t window) {
  if (!is_windowed(window, rows)) return {{0, rows, 0, rows}};
  const std::int64_t step = std::clamp<std::int64_t>(window, 128, 1024);
  std::vector<Piece> pieces;
  for (std::int64_t query = 0; query < rows; query += step) {
    const std::int64_t queries = std::min(step, rows - query);
    const std::int64_t key = std::max<std::int64_t>(0, query - window + 1);
    pieces.push_back({query, queries, key, query + queries - key});
  }
  return pieces;
}

std::vector<Segment> segments_of(const AttentionShape& s) {
  if (!s.segments.empty()) return s.segments;
  std::vector<Segment> samples;
  for (std::int64_t i = 0; i < s.batch; ++i) samples.push_back({i, 0, s.seq});
  return samples;
}

// Runs body(HeadGroup<T>) for each key-value head of each segment.
template <typename T, typename Body>
void for_each_head_group(const at::Tensor& qkv, const AttentionShape& s, const at::Tensor& out_grad, const at::Tensor& out,
                         const at::Tensor& lse, const Body& body) {
  const std::int64_t shared = s.heads / s.kv_heads;
  const std::int64_t width = qkv.size(1);
  const std::int64_t out_width = s.heads * s.head_dim;
  const std::vector<Segment> segments = segments_of(s);
  at::parallel_for(0, std::ssize(segments) * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const Segment& segment = segments[static_cast<std::size_t>(task / s.kv_heads)];
      const std::int64_t head = task % s.kv_heads;
      const std::int64_t first_row = segment.sample * s.seq + segment.first;
      T* row = data<T>(qkv) + first_row * width;
      const std::int64_t first = first_row * out_width + head * shared * s.head_dim;
      body(HeadGroup<T>{segment.rows, segment.rows, s.causal ? 0 : sees_all(segment.rows), shared, s.head_dim, s.window, width,
                        row + head * shared * s.head_dim, width, row + (s.heads + head) * s.head_dim,
                        row + (s.heads + s.kv_heads + head) * s.head_dim, out_width,
                        out_grad.defined() ? data<T>(out_grad) + first : nullptr, data<T>(out) + first,
                        data<float>(lse) + (segment.sample * s.heads + head * shared) * s.seq + segment.first, s.seq});
    }
  });
}

// Runs body(HeadGroup<T>) for each key-value head of each sample.
template <typename T, typename Body>
void for_each_head_group_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& s, const at::Tensor& out_grad,
                                const at::Tensor& out, const at::Tensor& lse, const Body& body) {
  const std::int64_t shared = s.heads / s.kv_heads;
  const std::int64_t width = s.heads * s.head_dim;
  const std::int64_t key_width = s.kv_heads * s.head_dim;
  at::parallel_for(0, s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t sample = task / s.kv_heads;
      const std::int64_t head = task % s.kv_heads;
      const std::int64_t first = sample * s.queries * width + head * shared * s.head_dim;
      T* const key = data<T>(keys_values) + sample * s.keys * 2 * key_width + head * s.head_dim;
      body(HeadGroup<T>{s.queries, s.keys, s.causal ? s.offset : sees_all(s.keys), shared, s.head_dim, s.window, width,
                        data<T>(queries) + first, 2 * key_width, key, key + key_width, width,
                        out_grad.defined() ? data<T>(out_grad) + first : nullptr, data<T>(out) + first,
                        data<float>(lse) + (sample * s.heads + head * shared) * s.queries, s.queries});
    }
  });
}

// Views [batch, heads, rows, head_dim], and the mask where one is needed.
struct Across {
  at::Tensor queries, keys, values;
  std::optional<at::Tensor> mask;

  Across(const at::Tensor& query_rows, const at::Tensor& keys_values, const CrossShape& s) : queries(heads_of(query_rows, s)) {
    const at::Tensor both = keys_values.view({s.batch, s.keys, 2, s.kv_heads, s.head_dim});
    keys = both.select(2, 0).transpose(1, 2);
    values = both.select(2, 1).transpose(1, 2);
    const bool masked = s.causal && (s.offset + 1 < s.keys || is_windowed(s.window, s.offset + s.queries));
    if (masked) mask = mask_of(s.queries, s.keys, s.offset, s.window, query_rows.scalar_type());
  }
  static at::Tensor heads_of(const at::Tensor& rows, const CrossShape& s) {
    return rows.view({s.batch, s.queries, s.heads, s.head_dim}).transpose(1, 2);
  }
};

// A segment of a tensor [batch, heads, seq, ...].
at::Tensor part(const at::Tensor& whole, const Segment& segment) {
  return whole.narrow(0, segment.sample, 1).narrow(2, segment.first, segment.rows);
}

}  // namespace

std::vector<Segment> document_segments(const at::Tensor& positions) {
  std::vector<Segment> segments;
  if (!positions.defined()) return segments;
  const std::int64_t seq = positions.size(1);
  const at::Tensor on_host = positions.to(at::kCPU);
  const std::int64_t* position = data<std::int64_t>(on_host);
  for (std::int64_t row = 0; row < positions.numel(); ++row) {
    if (row % seq == 0 || position[row] == 0)
      segments.push_back({row / seq, row % seq, 1});
    else
      ++segments.back().rows;
  }
  return segments;
}

void attention(const at::Tensor& qkv, const AttentionShape& shape, at::Tensor& out, at::Tensor& lse) {
  if (!use_cpu_kernels(qkv)) return aten::attention(qkv, shape, out, lse);
  if (has_own_kernel(qkv, shape.head_dim)) {
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
  // One by one: ATen's results are tensors of its own, and only those of one segment are held beside ours.
  for (const Segment& segment : segments_of(shape)) {
    const auto one = [&](const at::Tensor& whole) { return part(whole, segment); };
    const std::vector<Piece> pieces = pieces_of(segment.rows, shape.window);
    for (const Piece& p : pieces) {
      // Where the causal mask is all there is, ATen has its own.
      std::optional<at::Tensor> mask;
      if (is_windowed(shape.window, segment.rows)) mask = p.mask(shape.window, qkv.scalar_type());
      const auto [result, statistics] = at::_scaled_dot_product_flash_attention_for_cpu(
          p.queries_of(one(heads.queries)), p.keys_of(one(heads.keys)), p.keys_of(one(heads.values)), 0.0, shape.causal && !mask, mask);
      p.queries_of(one(as_heads(out, shape))).copy_(result);
      p.queries_of(one(lse)).copy_(statistics);
    }
  }
}

void attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                        at::Tensor& qkv) {
  if (!use_cpu_kernels(qkv)) return aten::attention_backward(out_grad, out, lse, shape, qkv);
  if (has_own_kernel(qkv, shape.head_dim)) {
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
  for (const Segment& segment : segments_of(shape)) {
    const auto one = [&](const at::Tensor& whole) { return part(whole, segment); };
    const std::vector<Piece> pieces = pieces_of(segment.rows, shape.window);
    // Pieces share keys: their gradients are added up beside the keys and values that later pieces read.
    at::Tensor key_grads, value_grads;
    const auto add = [&](at::Tensor& sums, const at::Tensor& like, const Piece& p, const at::Tensor& grads) {
      if (pieces.size() == 1) {
        sums = grads;
        return;
      }
      if (!sums.defined()) sums = at::zeros_like(like, at::kFloat);
      p.keys_of(sums).add_(grads);
    };
    for (const Piece& p : pieces) {
      std::optional<at::Tensor> mask;
      if (is_windowed(shape.window, segment.rows)) mask = p.mask(shape.window, qkv.scalar_type());
      const auto [queries, keys, values] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          p.queries_of(one(as_heads(out_grad, shape))), p.queries_of(one(heads.queries)), p.keys_of(one(heads.keys)),
          p.keys_of(one(heads.values)), p.queries_of(one(as_heads(out, shape))), p.queries_of(one(lse)), 0.0, shape.causal && !mask, mask);
      p.queries_of(one(heads.queries)).copy_(queries);
      add(key_grads, one(heads.keys), p, keys);
      add(value_grads, one(heads.values), p, values);
    }
    one(heads.keys).copy_(key_grads);
    one(heads.values).copy_(value_grads);
  }
}

void attention_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, at::Tensor& out, at::Tensor& lse) {
  if (!use_cpu_kernels(queries)) return aten::attention_across(queries, keys_values, shape, out, lse);
  if (!has_own_kernel(queries, shape.head_dim)) return attention_across_plain(queries, keys_values, shape, out, lse);
  dispatch(queries, [&](auto tag) {
    using T = decltype(tag);
    for_each_head_group_across<T>(queries, keys_values, shape, {}, out, lse, [](const HeadGroup<T>& group) { attend(group); });
  });
}

void attention_across_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                               at::Tensor& queries, at::Tensor& keys_values) {
  if (!use_cpu_kernels(queries)) return aten::attention_across_backward(out_grad, out, lse, shape, queries, keys_values);
  if (!has_own_kernel(queries, shape.head_dim)) return attention_across_backward_plain(out_grad, out, lse, shape, queries, keys_values);
  dispatch(queries, [&](auto tag) {
    using T = decltype(tag);
    for_each_head_group_across<T>(queries, keys_values, shape, out_grad, out, lse,
                                  [](const HeadGroup<T>& group) { attend_backward(group); });
  });
}

void attention_across_plain(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, at::Tensor& out,
                            at::Tensor& lse) {
  const Across across(queries, keys_values, shape);
  const auto [result, statistics] =
      at::_scaled_dot_product_flash_attention_for_cpu(across.queries, across.keys, across.values, 0.0, false, across.mask);
  Across::heads_of(out, shape).copy_(result);
  lse.copy_(statistics);
}

void attention_across_backward_plain(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                                     at::Tensor& queries, at::Tensor& keys_values) {
  Across across(queries, keys_values, shape);
  const auto [query_grads, key_grads, value_grads] =
      at::_scaled_dot_product_flash_attention_for_cpu_backward(Across::heads_of(out_grad, shape), across.queries, across.keys,
                                                               across.values, Across::heads_of(out, shape), lse, 0.0, false, across.mask);
  across.queries.copy_(query_grads);
  across.keys.copy_(key_grads);
  across.values.copy_(value_grads);
}

void attention_with_cache(const at::Tensor& qkv, const AttentionShape& shape, std::int64_t position, at::Tensor& keys, at::Tensor& values,
                          at::Tensor& out) {
  const std::int64_t seen = position + shape.seq;
  ensure(seen <= keys.size(2), text("the key-value cache holds ", keys.size(2), " positions and ", seen, " are needed"));
  if (!use_cpu_kernels(qkv)) return aten::attention_with_cache(qkv, shape, position, keys, values, out);
  const Heads heads = split(qkv, shape);
  keys.narrow(2, position, shape.seq).copy_(heads.keys);
  values.narrow(2, position, shape.seq).copy_(heads.values);
  const std::int64_t first = shape.window > 0 ? std::max<std::int64_t>(0, position - shape.window + 1) : 0;
  const bool causal = shape.seq > 1 && position == 0 && !is_windowed(shape.window, shape.seq);
  std::optional<at::Tensor> mask;
  if (shape.seq > 1 && !causal) mask = mask_of(shape.seq, seen - first, position - first, shape.window, qkv.scalar_type());
  const at::Tensor result = std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(
      heads.queries, keys.narrow(2, first, seen - first), values.narrow(2, first, seen - first), 0.0, causal, mask));
  as_heads(out, shape).copy_(result);
}

}  // namespace tessera::nn::kernels
