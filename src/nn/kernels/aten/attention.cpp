#include "nn/kernels/attention.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "base/error.hpp"
#include "nn/kernels/aten/flash_attention.hpp"
#include "nn/kernels/aten/kernels.hpp"

namespace tessera::nn::kernels::aten {
namespace {

// Whose scores are held at once: enough for a product to fill a device.
constexpr std::int64_t kQueries = 256;

// Some consecutive queries, and the keys that they see between them.
struct Piece {
  std::int64_t query, queries;
  std::int64_t key, keys;
};

// Rows [batch * rows, heads * head_dim] as [batch, heads, rows, head_dim].
at::Tensor as_heads(const at::Tensor& rows, std::int64_t batch, std::int64_t heads) {
  return rows.view({batch, rows.size(0) / batch, heads, rows.size(1) / heads}).transpose(1, 2);
}

Heads split(const at::Tensor& qkv, const AttentionShape& s) {
  const auto view = [&](std::int64_t first_head, std::int64_t heads) {
    return as_heads(qkv.narrow(1, first_head * s.head_dim, heads * s.head_dim), s.batch, heads);
  };
  return {view(0, s.heads), view(s.heads, s.kv_heads), view(s.heads + s.kv_heads, s.kv_heads)};
}

Heads split_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& s) {
  const std::int64_t width = s.kv_heads * s.head_dim;
  return {as_heads(queries, s.batch, s.heads), as_heads(keys_values.narrow(1, 0, width), s.batch, s.kv_heads),
          as_heads(keys_values.narrow(1, width, width), s.batch, s.kv_heads)};
}

// The same of views [batch, rows, heads * head_dim].
at::Tensor heads_of(const at::Tensor& rows, std::int64_t heads) {
  return rows.view({rows.size(0), rows.size(1), heads, rows.size(2) / heads}).transpose(1, 2);
}

Heads split_samples(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& s) {
  const std::int64_t width = s.kv_heads * s.head_dim;
  return {heads_of(queries, s.heads), heads_of(keys_values.narrow(2, 0, width), s.kv_heads),
          heads_of(keys_values.narrow(2, width, width), s.kv_heads)};
}

CrossShape cross_shape(const AttentionShape& s) {
  return {s.batch, s.seq, s.seq, s.heads, s.kv_heads, s.head_dim, /*offset=*/0, s.window, s.causal};
}

// Which document each row belongs to, i64 [batch, 1, 1, seq]; undefined where each sample is one.
at::Tensor documents_of(const AttentionShape& s, at::TensorOptions options) {
  if (s.segments.empty()) return {};
  std::vector<std::int64_t> lengths;
  for (const Segment& segment : s.segments) lengths.push_back(segment.rows);
  const std::optional<std::int64_t> rows = s.batch * s.seq;  // so that nobody has to add the lengths up
  return at::repeat_interleave(at::tensor(lengths, options.dtype(at::kLong)), rows).view({s.batch, 1, 1, s.seq});
}

// Query heads that share keys become rows of one product, so that keys are not repeated.
class Scores {
 public:
  Scores(const Heads& heads, const CrossShape& shape, at::Tensor documents, const ScoreMask* mask = nullptr)
      : heads_(heads),
        shape_(shape),
        documents_(std::move(documents)),
        mask_(mask),
        scale_(1 / std::sqrt(static_cast<double>(shape.head_dim))),
        keys_(flat(heads.keys)),
        values_(flat(heads.values)) {}

  std::vector<Piece> pieces() const {
    std::vector<Piece> out;
    for (std::int64_t query = 0; query < shape_.queries; query += kQueries) {
      const std::int64_t queries = std::min(kQueries, shape_.queries - query);
      const std::int64_t position = shape_.offset + query;
      const std::int64_t key = shape_.window > 0 ? std::max<std::int64_t>(0, position - shape_.window + 1) : 0;
      const std::int64_t end = shape_.causal ? std::min(shape_.keys, position + queries) : shape_.keys;
      out.push_back({query, queries, key, end - key});
    }
    return out;
  }

  double scale() const { return scale_; }
  // [batch * kv_heads, shared heads * queries, head_dim] of a tensor of queries' heads.
  at::Tensor queries_of(const at::Tensor& heads, const Piece& p) const {
    return heads.narrow(2, p.query, p.queries).reshape({groups(), shared() * p.queries, shape_.head_dim});
  }
  // [batch * kv_heads, keys, head_dim].
  at::Tensor keys(const Piece& p) const { return keys_.narrow(1, p.key, p.keys); }
  at::Tensor values(const Piece& p) const { return values_.narrow(1, p.key, p.keys); }
  // f32 [batch * kv_heads, shared heads * queries, 1] of a statistic f32 [batch, heads, queries].
  at::Tensor statistic_of(const at::Tensor& lse, const Piece& p) const {
    return lse.narrow(2, p.query, p.queries).reshape({groups(), shared() * p.queries, 1});
  }
  // What queries_of or statistic_of gave, back to where it came from.
  void put(const at::Tensor& piece, const at::Tensor& heads, const Piece& p) const {
    const at::Tensor place = heads.narrow(2, p.query, p.queries);
    place.copy_(piece.view(place.sizes()));
  }

  // f32 [batch * kv_heads, shared heads * queries, keys], -infinity where a query does not see a key.
  at::Tensor of(const Piece& p) const {
    at::Tensor scores = at::bmm(queries_of(heads_.queries, p), keys(p).transpose(1, 2)).to(at::kFloat).mul_(scale_);
    if (const at::Tensor hidden = hidden_in(p); hidden.defined())
      scores.view({shape_.batch, shape_.heads, p.queries, p.keys}).masked_fill_(hidden, -std::numeric_limits<float>::infinity());
    return scores;
  }

  // Shares of a piece, or their gradients, without those that are dropped.
  at::Tensor dropped(const at::Tensor& shares, const Piece& p) const {
    if (mask_ == nullptr) return shares;
    const at::TensorOptions options = keys_.options().dtype(at::kLong);
    const auto range = [&](std::int64_t first, std::int64_t count) { return at::arange(first, first + count, options); };
    const at::Tensor heads = range(mask_->first_head, shape_.heads).view({shape_.heads, 1, 1});
    const at::Tensor queries = range(mask_->position + p.query, p.queries).unsqueeze(1);
    const at::Tensor keys = range(mask_->position - shape_.offset + p.key, p.keys);
    const at::Tensor places = (heads * mask_->seq + queries) * mask_->seq + keys;
    const at::Tensor seeds = seeds_on(keys_.device(), mask_->seeds).view({shape_.batch, 1, 1, 1});
    at::Tensor kept = shares * (1 / (1 - mask_->probability));
    kept.view({shape_.batch, shape_.heads, p.queries, p.keys}).masked_fill_(dropped_at(seeds, places, mask_->probability), 0);
    return kept;
  }

 private:
  std::int64_t groups() const { return shape_.batch * shape_.kv_heads; }
  std::int64_t shared() const { return shape_.heads / shape_.kv_heads; }
  at::Tensor flat(const at::Tensor& heads) const { return heads.reshape({groups(), shape_.keys, shape_.head_dim}); }

  // Undefined where all queries see all keys.
  at::Tensor hidden_in(const Piece& p) const {
    const std::int64_t position = shape_.offset + p.query;
    at::Tensor hidden;
    const bool masked =
        shape_.causal && (position < p.key + p.keys - 1 || (shape_.window > 0 && position + p.queries - shape_.window > p.key));
    if (masked) {
      const at::TensorOptions options = keys_.options().dtype(at::kLong);
      const at::Tensor distance =
          at::arange(position, position + p.queries, options).unsqueeze(1) - at::arange(p.key, p.key + p.keys, options);
      hidden = distance.lt(0);
      if (shape_.window > 0) hidden.bitwise_or_(distance.ge(shape_.window));
    }
    if (!documents_.defined()) return hidden;
    const at::Tensor apart = documents_.narrow(3, p.query, p.queries).transpose(2, 3).ne(documents_.narrow(3, p.key, p.keys));
    return hidden.defined() ? hidden.bitwise_or(apart) : apart;
  }

  const Heads& heads_;
  const CrossShape shape_;
  const at::Tensor documents_;
  const ScoreMask* const mask_;  // nothing is dropped where it is null
  const double scale_;
  const at::Tensor keys_, values_;
};

void attend(const Scores& scores, const at::Tensor& out, const at::Tensor& lse) {
  for (const Piece& piece : scores.pieces()) {
    at::Tensor shares = scores.of(piece);
    const at::Tensor peaks = shares.amax(2, true);
    const at::Tensor sums = shares.sub_(peaks).exp_().sum(2, true);
    const at::Tensor values = scores.values(piece);
    shares.div_(sums);
    scores.put(at::bmm(scores.dropped(shares, piece).to(values.scalar_type()), values), out, piece);
    if (lse.defined()) scores.put(sums.log().add_(peaks), lse, piece);
  }
}

// Queries, keys and values become their gradients.
void attend_backward(const Scores& scores, const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const Heads& heads) {
  // Pieces share keys.
  const at::TensorOptions f32 = lse.options();
  const at::Tensor key_grads = at::zeros({heads.keys.size(0) * heads.keys.size(1), heads.keys.size(2), heads.keys.size(3)}, f32);
  const at::Tensor value_grads = at::zeros(key_grads.sizes(), f32);
  for (const Piece& piece : scores.pieces()) {
    const at::Tensor queries = scores.queries_of(heads.queries, piece);
    const at::Tensor grad = scores.queries_of(out_grad, piece);
    const at::ScalarType type = grad.scalar_type();
    const at::Tensor shares = scores.of(piece).sub_(scores.statistic_of(lse, piece)).exp_();
    value_grads.narrow(1, piece.key, piece.keys).add_(at::bmm(scores.dropped(shares, piece).to(type).transpose(1, 2), grad));
    // Of each query, the mean of its shares' gradients (FlashAttention, Dao et al. 2022, appendix B.2).
    const at::Tensor mean = (grad.to(at::kFloat) * scores.queries_of(out, piece)).sum(2, true);
    at::Tensor score_grads = at::bmm(grad, scores.values(piece).transpose(1, 2)).to(at::kFloat);
    score_grads = scores.dropped(score_grads, piece).sub_(mean).mul_(shares).mul_(scores.scale()).to(type);
    key_grads.narrow(1, piece.key, piece.keys).add_(at::bmm(score_grads.transpose(1, 2), queries));
    scores.put(at::bmm(score_grads, scores.keys(piece)), heads.queries, piece);
  }
  heads.keys.copy_(key_grads.view(heads.keys.sizes()));
  heads.values.copy_(value_grads.view(heads.values.sizes()));
}

}  // namespace

void attention(const at::Tensor& qkv, const AttentionShape& shape, at::Tensor& out, at::Tensor& lse) {
  const Heads heads = split(qkv, shape);
  const at::Tensor out_heads = as_heads(out, shape.batch, shape.heads);
  if (flash_attends(heads, cross_shape(shape), shape.segments))
    return flash_attention(heads, cross_shape(shape), shape.segments, out_heads, lse);
  attend(Scores(heads, cross_shape(shape), documents_of(shape, qkv.options())), out_heads, lse);
}

void attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                        at::Tensor& qkv) {
  const Heads heads = split(qkv, shape);
  const at::Tensor grad_heads = as_heads(out_grad, shape.batch, shape.heads);
  const at::Tensor out_heads = as_heads(out, shape.batch, shape.heads);
  if (flash_attends(heads, cross_shape(shape), shape.segments))
    return flash_attention_backward(grad_heads, out_heads, lse, cross_shape(shape), shape.segments, heads);
  attend_backward(Scores(heads, cross_shape(shape), documents_of(shape, qkv.options())), grad_heads, out_heads, lse, heads);
}

void attention_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, at::Tensor& out, at::Tensor& lse) {
  const Heads heads = split_across(queries, keys_values, shape);
  const at::Tensor out_heads = as_heads(out, shape.batch, shape.heads);
  if (flash_attends(heads, shape, {})) return flash_attention(heads, shape, {}, out_heads, lse);
  attend(Scores(heads, shape, {}), out_heads, lse);
}

void attention_across_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                               at::Tensor& queries, at::Tensor& keys_values) {
  const Heads heads = split_across(queries, keys_values, shape);
  const at::Tensor grad_heads = as_heads(out_grad, shape.batch, shape.heads);
  const at::Tensor out_heads = as_heads(out, shape.batch, shape.heads);
  if (flash_attends(heads, shape, {})) return flash_attention_backward(grad_heads, out_heads, lse, shape, {}, heads);
  attend_backward(Scores(heads, shape, {}), grad_heads, out_heads, lse, heads);
}

void attention_with_cache(const at::Tensor& qkv, const AttentionShape& shape, std::int64_t position, at::Tensor& keys, at::Tensor& values,
                          at::Tensor& out) {
  Heads heads = split(qkv, shape);
  const std::int64_t seen = position + shape.seq;
  keys.narrow(2, position, shape.seq).copy_(heads.keys);
  values.narrow(2, position, shape.seq).copy_(heads.values);
  heads.keys = keys.narrow(2, 0, seen);
  heads.values = values.narrow(2, 0, seen);
  CrossShape cross = cross_shape(shape);
  cross.keys = seen;
  cross.offset = position;
  attend(Scores(heads, cross, {}), as_heads(out, shape.batch, shape.heads), {});
}

void dropped_attention(const at::Tensor& qkv, const AttentionShape& shape, const ScoreMask& mask, at::Tensor& out, at::Tensor& lse) {
  const Heads heads = split(qkv, shape);
  attend(Scores(heads, cross_shape(shape), documents_of(shape, qkv.options()), &mask), as_heads(out, shape.batch, shape.heads), lse);
}

void dropped_attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                                const ScoreMask& mask, at::Tensor& qkv) {
  const Heads heads = split(qkv, shape);
  attend_backward(Scores(heads, cross_shape(shape), documents_of(shape, qkv.options()), &mask),
                  as_heads(out_grad, shape.batch, shape.heads), as_heads(out, shape.batch, shape.heads), lse, heads);
}

void dropped_attention_across(const at::Tensor& queries, const at::Tensor& keys_values, const CrossShape& shape, const ScoreMask& mask,
                              const at::Tensor& out, const at::Tensor& lse) {
  const Heads heads = split_samples(queries, keys_values, shape);
  attend(Scores(heads, shape, {}, &mask), heads_of(out, shape.heads), lse);
}

void dropped_attention_across_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const CrossShape& shape,
                                       const ScoreMask& mask, const at::Tensor& queries, const at::Tensor& keys_values) {
  const Heads heads = split_samples(queries, keys_values, shape);
  attend_backward(Scores(heads, shape, {}, &mask), heads_of(out_grad, shape.heads), heads_of(out, shape.heads), lse, heads);
}

}  // namespace tessera::nn::kernels::aten
