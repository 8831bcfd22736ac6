#include "nn/kernels/dropped_attention.hpp"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "nn/kernels/aten/kernels.hpp"
#include "nn/kernels/device.hpp"
#include "nn/kernels/dispatch.hpp"
#include "nn/kernels/dropout.hpp"

namespace tessera::nn::kernels {
namespace {

// Queries whose scores are held at a time.
constexpr std::int64_t kSlab = 128;

// One head of one sample, in f32.
at::Tensor head_of(const at::Tensor& rows, std::int64_t sample, std::int64_t head, std::int64_t head_dim) {
  return rows[sample].narrow(1, head * head_dim, head_dim);
}

class Slabs {
 public:
  Slabs(const CrossShape& shape, const ScoreMask& mask, std::int64_t sample, std::int64_t head)
      : shape_(shape), mask_(mask), seed_(mask.seeds[static_cast<std::size_t>(sample)]), head_(mask.first_head + head) {}

  // Runs body(first query, queries).
  template <typename Body>
  void each(const Body& body) const {
    for (std::int64_t first = 0; first < shape_.queries; first += kSlab) body(first, std::min(kSlab, shape_.queries - first));
  }

  // Of the queries from `first` on, [queries, keys]: what they do not see is -infinity.
  at::Tensor scores(const at::Tensor& queries, const at::Tensor& keys, std::int64_t first) const {
    at::Tensor scores = at::mm(queries, keys.t()).mul_(1 / std::sqrt(static_cast<double>(shape_.head_dim)));
    if (!shape_.causal) return scores;
    for (std::int64_t q = 0; q < scores.size(0); ++q) {
      float* row = data<float>(scores) + q * shape_.keys;
      const std::int64_t place = first + q + shape_.offset;  // among the keys
      const std::int64_t begin = shape_.window > 0 ? std::clamp<std::int64_t>(place - shape_.window + 1, 0, shape_.keys) : 0;
      const std::int64_t end = std::min(shape_.keys, place + 1);
      std::fill(row, row + begin, -std::numeric_limits<float>::infinity());
      std::fill(row + end, row + shape_.keys, -std::numeric_limits<float>::infinity());
    }
    return scores;
  }

  // In place.
  void drop(at::Tensor& shares, std::int64_t first) const {
    std::vector<RowPlace> places;
    for (std::int64_t q = 0; q < shares.size(0); ++q) {
      const std::int64_t query = mask_.position + first + q;
      places.push_back({seed_, (head_ * mask_.seq + query) * mask_.seq + mask_.position - shape_.offset});
    }
    dropout_rows(shares, mask_.probability, places, shares);
  }

 private:
  const CrossShape& shape_;
  const ScoreMask& mask_;
  const std::uint64_t seed_;
  const std::int64_t head_;
};

// Runs body(sample, key-value head).
template <typename Body>
void for_each_head(const CrossShape& s, const Body& body) {
  at::parallel_for(0, s.batch * s.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) body(task / s.kv_heads, task % s.kv_heads);
  });
}

// Runs body(rows of a tensor -> views of a segment, statistic -> view, its shape, its mask).
template <typename Body>
void for_each_segment(const AttentionShape& s, const ScoreMask& mask, const Body& body) {
  const auto run = [&](std::int64_t sample, std::int64_t samples, std::int64_t first, std::int64_t count) {
    const auto rows = [=, &s](const at::Tensor& all) {
      return all.view({s.batch, s.seq, all.size(1)}).narrow(0, sample, samples).narrow(1, first, count);
    };
    const auto statistic = [=](const at::Tensor& lse) { return lse.narrow(0, sample, samples).narrow(2, first, count); };
    ScoreMask own = mask;
    own.seeds = mask.seeds.subspan(static_cast<std::size_t>(sample), static_cast<std::size_t>(samples));
    own.position = first;
    body(rows, statistic, CrossShape{samples, count, count, s.heads, s.kv_heads, s.head_dim, 0, s.window, s.causal}, own);
  };
  if (s.segments.empty()) run(0, s.batch, 0, s.seq);
  for (const Segment& segment : s.segments) run(segment.sample, 1, segment.first, segment.rows);
}

at::Tensor queries_of(const at::Tensor& rows, const AttentionShape& s) { return rows.narrow(2, 0, s.heads * s.head_dim); }
at::Tensor keys_values_of(const at::Tensor& rows, const AttentionShape& s) {
  return rows.narrow(2, s.heads * s.head_dim, 2 * s.kv_heads * s.head_dim);
}

}  // namespace

void dropped_attention(const at::Tensor& qkv, const AttentionShape& shape, const ScoreMask& mask, at::Tensor& out, at::Tensor& lse) {
  if (!use_cpu_kernels(qkv)) return aten::dropped_attention(qkv, shape, mask, out, lse);
  for_each_segment(shape, mask, [&](const auto& rows, const auto& statistic, const CrossShape& across, const ScoreMask& own) {
    dropped_attention_across(queries_of(rows(qkv), shape), keys_values_of(rows(qkv), shape), across, own, rows(out), statistic(lse));
  });
}

void dropped_attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                                const ScoreMask& mask, at::Tensor& qkv) {
  if (!use_cpu_kernels(qkv)) return aten::dropped_attention_backward(out_grad, out, lse, shape, mask, qkv);
  for_each_segment(shape, mask, [&](const auto& rows, const auto& statistic, const CrossShape& across, const ScoreMask& own) {
    dropped_attention_across_backward(rows(out_grad), rows(out), statistic(lse), across, own, queries_of(rows(qkv), shape),
                                      keys_values_of(rows(qkv), shape));
  });
}

void dropped_attention_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& s, const ScoreMask& mask,
                              const at::Tensor& out, const at::Tensor& lse) {
  if (!use_cpu_kernels(queries)) return aten::dropped_attention_across(queries, keys_values, s, mask, out, lse);
  const std::int64_t shared = s.heads / s.kv_heads;
  for_each_head(s, [&](std::int64_t sample, std::int64_t kv_head) {
    const at::Tensor keys = head_of(keys_values, sample, kv_head, s.head_dim).to(at::kFloat);
    const at::Tensor values = head_of(keys_values, sample, s.kv_heads + kv_head, s.head_dim).to(at::kFloat);
    for (std::int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
      const at::Tensor own = head_of(queries, sample, head, s.head_dim).to(at::kFloat);
      const Slabs slabs(s, mask, sample, head);
      slabs.each([&](std::int64_t first, std::int64_t count) {
        at::Tensor shares = slabs.scores(own.narrow(0, first, count), keys, first);
        const at::Tensor sums = at::logsumexp(shares, {1});
        lse[sample][head].narrow(0, first, count).copy_(sums);
        shares.sub_(sums.unsqueeze(1)).exp_();
        slabs.drop(shares, first);
        head_of(out, sample, head, s.head_dim).narrow(0, first, count).copy_(at::mm(shares, values));
      });
    }
  });
}

void dropped_attention_across_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& s,
                                       const ScoreMask& mask, const at::Tensor& queries, const at::Tensor& keys_values) {
  if (!use_cpu_kernels(queries)) return aten::dropped_attention_across_backward(out_grad, out, lse, s, mask, queries, keys_values);
  const std::int64_t shared = s.heads / s.kv_heads;
  for_each_head(s, [&](std::int64_t sample, std::int64_t kv_head) {
    const at::Tensor key_rows = head_of(keys_values, sample, kv_head, s.head_dim);
    const at::Tensor value_rows = head_of(keys_values, sample, s.kv_heads + kv_head, s.head_dim);
    const at::Tensor keys = key_rows.to(at::kFloat);
    const at::Tensor values = value_rows.to(at::kFloat);
    const at::Tensor key_grads = at::zeros({s.keys, s.head_dim}, at::kFloat);
    const at::Tensor value_grads = at::zeros({s.keys, s.head_dim}, at::kFloat);
    const double scale = 1 / std::sqrt(static_cast<double>(s.head_dim));
    for (std::int64_t head = kv_head * shared; head < (kv_head + 1) * shared; ++head) {
      const Slabs slabs(s, mask, sample, head);
      slabs.each([&](std::int64_t first, std::int64_t count) {
        const auto some = [&](const at::Tensor& rows) { return head_of(rows, sample, head, s.head_dim).narrow(0, first, count); };
        const at::Tensor own = some(queries).to(at::kFloat);
        const at::Tensor grad = some(out_grad).to(at::kFloat);
        at::Tensor shares = slabs.scores(own, keys, first);
        shares.sub_(lse[sample][head].narrow(0, first, count).unsqueeze(1)).exp_();
        at::Tensor kept = shares.clone();
        slabs.drop(kept, first);
        value_grads.addmm_(kept.t(), grad);
        // Of the shares before they are dropped; a row's sum of share times gradient is that of its output times gradient.
        at::Tensor share_grads = at::mm(grad, values.t());
        slabs.drop(share_grads, first);
        const at::Tensor mean = (grad * some(out).to(at::kFloat)).sum(1, true);
        const at::Tensor score_grads = shares.mul_(share_grads.sub_(mean)).mul_(scale);
        key_grads.addmm_(score_grads.t(), own);
        some(queries).copy_(at::mm(score_grads, keys));
      });
    }
    key_rows.copy_(key_grads);
    value_rows.copy_(value_grads);
  });
}

}  // namespace tessera::nn::kernels
