#include "nn/context_parallel.hpp"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logaddexp.h>
#include <ATen/ops/zeros.h>
#include <algorithm>
#include <limits>
#include <numeric>

#include "nn/kernels/dropped_attention.hpp"
#include "nn/sequence.hpp"
#include "nn/tensor_parallel.hpp"

namespace tessera::nn {
namespace {

using kernels::AttentionShape;
using kernels::Segment;

bool alone(const Pass& pass) { return sequence_cut(pass).size == 1; }

// Rows of one rank against rows of one rank, which may be the same: consecutive queries against consecutive keys.
struct Piece {
  std::int64_t sample, samples;
  std::int64_t query, queries;
  std::int64_t key, keys;
  std::int64_t offset;        // as in kernels::CrossShape
  std::int64_t position = 0;  // of the first query in the sequence, where they stand side by side there as well
};

// What the queries of `cut` see of the keys that rank `source` holds. `apart`: in pieces that stand side by side in the sequence.
std::vector<Piece> pieces_of(const AttentionShape& shape, const SequenceCut& cut, int source, bool apart) {
  const std::int64_t chunk = shape.seq / 2;
  const bool windowed = shape.window > 0 && shape.window < shape.seq * cut.size;
  if (shape.segments.empty() && !windowed && !apart) {
    if (source == cut.rank || !shape.causal) return {{0, shape.batch, 0, 2 * chunk, 0, 2 * chunk, 0}};
    // The first chunk of a rank before this one lies before both of this one's, and its second behind both.
    if (source < cut.rank) return {{0, shape.batch, 0, 2 * chunk, 0, chunk, chunk}};
    return {{0, shape.batch, chunk, chunk, 0, 2 * chunk, 2 * chunk}};
  }
  const auto chunk_of = [&](int rank, int half) { return half == 0 ? rank : 2 * cut.size - 1 - rank; };
  std::vector<Piece> pieces;
  const auto add = [&](std::int64_t sample, std::int64_t samples, std::int64_t begin, std::int64_t end) {
    for (int mine = 0; mine < 2; ++mine)
      for (int theirs = 0; theirs < 2; ++theirs) {
        const std::int64_t query_chunk = chunk_of(cut.rank, mine) * chunk;
        const std::int64_t key_chunk = chunk_of(source, theirs) * chunk;
        const std::int64_t query = std::max(begin, query_chunk);
        const std::int64_t key = std::max(begin, key_chunk);
        const std::int64_t keys = std::min(end, key_chunk + chunk) - key;
        std::int64_t queries = std::min(end, query_chunk + chunk) - query;
        // Those behind them see none of the keys.
        if (windowed) queries = std::min(queries, keys + shape.window - 1 - (query - key));
        if ((shape.causal && key_chunk > query_chunk) || queries <= 0 || keys <= 0) continue;
        pieces.push_back(
            {sample, samples, query - query_chunk + mine * chunk, queries, key - key_chunk + theirs * chunk, keys, query - key, query});
      }
  };
  if (shape.segments.empty()) add(0, shape.batch, 0, shape.seq * cut.size);
  for (const Segment& segment : shape.segments) add(segment.sample, 1, segment.first, segment.first + segment.rows);
  return pieces;
}

// Parts of this rank's rows, in whose place other tensors of the same rows are as well.
class Rectangle {
 public:
  Rectangle(const AttentionShape& shape, const Piece& piece) : shape_(shape), piece_(piece) {}

  kernels::CrossShape across() const {
    return {piece_.samples,  piece_.queries, piece_.keys,   shape_.heads, shape_.kv_heads,
            shape_.head_dim, piece_.offset,  shape_.window, shape_.causal};
  }
  kernels::ScoreMask mask(const ScoreDropout& dropout, const SequenceCut& cut) const {
    const auto seeds = std::span(dropout.seeds).subspan(static_cast<std::size_t>(piece_.sample), static_cast<std::size_t>(piece_.samples));
    return {dropout.probability, seeds, dropout.first_head, shape_.seq * cut.size, piece_.position};
  }
  // Views [samples, rows, width] of [batch * seq, width].
  at::Tensor queries(const at::Tensor& rows) const { return part(rows, piece_.query, piece_.queries); }
  at::Tensor keys(const at::Tensor& rows) const { return part(rows, piece_.key, piece_.keys); }
  // A view [samples, heads, queries] of [batch, heads, seq].
  at::Tensor statistic(const at::Tensor& lse) const {
    return lse.narrow(0, piece_.sample, piece_.samples).narrow(2, piece_.query, piece_.queries);
  }
  // A tensor of its own, [samples * rows, width].
  static at::Tensor copy(const at::Tensor& view) { return view.reshape({-1, view.size(2)}).clone(); }

 private:
  at::Tensor part(const at::Tensor& rows, std::int64_t first, std::int64_t count) const {
    return rows.view({shape_.batch, shape_.seq, -1}).narrow(0, piece_.sample, piece_.samples).narrow(1, first, count);
  }

  const AttentionShape& shape_;
  const Piece piece_;
};

// One turn of the ring: a tensor goes to the next rank, and one of the same sizes comes from the rank before.
class Turn {
 public:
  Turn() = default;
  Turn(at::Tensor sent, std::uint32_t tag, const Pass& pass) : sent_(std::move(sent)), received_(at::empty_like(sent_)) {
    const comm::Group& group = pass.context_group;
    exchanges_.push_back(receive(group, received_, (group.rank() + group.size() - 1) % group.size(), tag));
    exchanges_.push_back(send(group, sent_, (group.rank() + 1) % group.size(), tag));
  }
  at::Tensor finish(const Pass& pass) {
    wait(exchanges_, pass);
    exchanges_.clear();
    sent_.reset();
    return std::move(received_);
  }

 private:
  at::Tensor sent_, received_;
  std::vector<Exchange> exchanges_;
};

constexpr std::uint32_t kKeysTag = 0;
constexpr std::uint32_t kGradsTag = 1;

// Runs body(source, keys and values of that rank), that of this rank first, while the next ones are on their way.
template <typename Body>
void round_the_ring(at::Tensor keys_values, const Pass& pass, const Body& body) {
  const SequenceCut cut = sequence_cut(pass);
  for (int step = 0; step < cut.size; ++step) {
    const bool last = step + 1 == cut.size;
    Turn turn = last ? Turn() : Turn(keys_values, kKeysTag, pass);
    body((cut.rank - step + cut.size) % cut.size, keys_values);
    if (!last) keys_values = turn.finish(pass);
  }
}

at::Tensor queries_of(const at::Tensor& qkv, const AttentionShape& s) { return qkv.narrow(1, 0, s.heads * s.head_dim); }
at::Tensor keys_values_of(const at::Tensor& qkv, const AttentionShape& s) {
  return qkv.narrow(1, s.heads * s.head_dim, 2 * s.kv_heads * s.head_dim);
}

// Adds what a piece has found to what its queries have seen so far. The sums are f32.
void merge(const at::Tensor& piece_out, const at::Tensor& piece_lse, at::Tensor out, at::Tensor lse, const AttentionShape& s) {
  const at::Tensor both = at::logaddexp(lse, piece_lse);
  const auto weigh = [&](const at::Tensor& rows, const at::Tensor& part) {
    const at::Tensor weight = at::exp(part - both).transpose(1, 2).unsqueeze(3);
    return rows.view({rows.size(0), rows.size(1), s.heads, s.head_dim}) * weight;
  };
  const at::Tensor sum = weigh(out, lse).add_(weigh(piece_out.view(out.sizes()), piece_lse));
  out.copy_(sum.view(out.sizes()));
  lse.copy_(both);
}

void ring(const at::Tensor& qkv, const AttentionShape& shape, const ScoreDropout& dropout, const Pass& pass, at::Tensor& out,
          at::Tensor& lse) {
  const SequenceCut cut = sequence_cut(pass);
  const bool drops = dropout.probability > 0;
  at::Tensor sums = at::zeros(out.sizes(), lse.options());
  lse.fill_(-std::numeric_limits<float>::infinity());
  round_the_ring(keys_values_of(qkv, shape).contiguous(), pass, [&](int source, const at::Tensor& keys_values) {
    for (const Piece& piece : pieces_of(shape, cut, source, drops)) {
      const Rectangle rectangle(shape, piece);
      const at::Tensor queries = Rectangle::copy(rectangle.queries(queries_of(qkv, shape)));
      at::Tensor piece_out = at::empty_like(queries);
      at::Tensor piece_lse = at::empty({piece.samples, shape.heads, piece.queries}, lse.options());
      if (drops) {
        const at::Tensor rows = rectangle.queries(sums);
        kernels::dropped_attention_across(queries.view(rows.sizes()), rectangle.keys(keys_values), rectangle.across(),
                                          rectangle.mask(dropout, cut), piece_out.view(rows.sizes()), piece_lse);
      } else {
        kernels::attention_across(queries, Rectangle::copy(rectangle.keys(keys_values)), rectangle.across(), piece_out, piece_lse);
      }
      merge(piece_out, piece_lse, rectangle.queries(sums), rectangle.statistic(lse), shape);
    }
  });
  out.copy_(sums);
}

void ring_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                   const ScoreDropout& dropout, const Pass& pass, at::Tensor& qkv) {
  const SequenceCut cut = sequence_cut(pass);
  const bool drops = dropout.probability > 0;
  const at::Tensor query_grads = at::zeros(out.sizes(), lse.options());
  at::Tensor own_grads;  // of this rank's keys and values, from its own queries
  Turn grads_turn;       // the gradients of the next step's keys and values, from the ranks that have had them
  const int rank = pass.context_group.rank();
  int steps = 0;
  round_the_ring(keys_values_of(qkv, shape).contiguous(), pass, [&](int source, const at::Tensor& keys_values) {
    at::Tensor grads = at::zeros(keys_values.sizes(), lse.options());
    for (const Piece& piece : pieces_of(shape, cut, source, drops)) {
      const Rectangle rectangle(shape, piece);
      at::Tensor queries = Rectangle::copy(rectangle.queries(queries_of(qkv, shape)));
      at::Tensor keys = Rectangle::copy(rectangle.keys(keys_values));
      if (drops)
        kernels::dropped_attention_across_backward(
            rectangle.queries(out_grad), rectangle.queries(out), rectangle.statistic(lse), rectangle.across(), rectangle.mask(dropout, cut),
            queries.view(rectangle.queries(out).sizes()), keys.view(rectangle.keys(keys_values).sizes()));
      else
        kernels::attention_across_backward(Rectangle::copy(rectangle.queries(out_grad)), Rectangle::copy(rectangle.queries(out)),
                                           rectangle.statistic(lse).contiguous(), rectangle.across(), queries, keys);
      rectangle.queries(query_grads).add_(queries.view(rectangle.queries(query_grads).sizes()));
      rectangle.keys(grads).add_(keys.view(rectangle.keys(grads).sizes()));
    }
    if (source == rank) {
      own_grads = std::move(grads);
      return;
    }
    if (++steps > 1) grads.add_(grads_turn.finish(pass));
    grads_turn = Turn(std::move(grads), kGradsTag, pass);
  });
  own_grads.add_(grads_turn.finish(pass));
  queries_of(qkv, shape).copy_(query_grads);
  keys_values_of(qkv, shape).copy_(own_grads);
}

// Of whole sequences.
void attend(const at::Tensor& qkv, const AttentionShape& shape, const ScoreDropout& dropout, at::Tensor& out, at::Tensor& lse) {
  if (dropout.probability == 0) return kernels::attention(qkv, shape, out, lse);
  kernels::dropped_attention(qkv, shape, {dropout.probability, dropout.seeds, dropout.first_head, shape.seq}, out, lse);
}

void attend_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                     const ScoreDropout& dropout, at::Tensor& qkv) {
  if (dropout.probability == 0) return kernels::attention_backward(out_grad, out, lse, shape, qkv);
  kernels::dropped_attention_backward(out_grad, out, lse, shape, {dropout.probability, dropout.seeds, dropout.first_head, shape.seq}, qkv);
}

// What one rank has of the heads of whole sequences.
struct HeadCut {
  std::int64_t repeats;  // of each key-value head
  AttentionShape shape;
  ScoreDropout dropout;

  HeadCut(const AttentionShape& own, const ScoreDropout& all, const SequenceCut& cut)
      : repeats(cut.size / std::gcd<std::int64_t>(cut.size, own.kv_heads)), shape(own), dropout(all) {
    ensure(own.heads % cut.size == 0, text(cut.size, " context-parallel ranks do not divide ", own.heads, " heads"));
    shape.seq *= cut.size;
    shape.heads /= cut.size;
    shape.kv_heads = own.kv_heads * repeats / cut.size;
    dropout.first_head += cut.rank * shape.heads;
  }
};

at::Tensor all_to_all(const at::Tensor& parts, const Pass& pass) {
  at::Tensor out = at::empty_like(parts);
  wait(nn::all_to_all(pass.context_group, parts, out), pass);
  return out;
}

// This rank's rows with the width of each rank beside each other, [batch, own, ranks, width] -> its width of all rows, [batch, seq, width].
at::Tensor to_heads(const at::Tensor& rows, const Pass& pass) {
  return sequence_cut(pass).whole(all_to_all(rows.permute({2, 0, 1, 3}).contiguous(), pass));
}

// The other way round; -> [batch, own, ranks, width].
at::Tensor from_heads(const at::Tensor& rows, const Pass& pass) {
  return all_to_all(sequence_cut(pass).parts(rows), pass).permute({1, 2, 0, 3});
}

// [batch * seq of all ranks, width].
at::Tensor qkv_to_heads(const at::Tensor& qkv, const AttentionShape& s, const HeadCut& heads, const Pass& pass) {
  const std::int64_t ranks = pass.context_group.size();
  const at::Tensor rows = qkv.view({s.batch, s.seq, s.heads + 2 * s.kv_heads, s.head_dim});
  const auto of_rank = [&](std::int64_t first, std::int64_t count, std::int64_t repeats) {
    return rows.narrow(2, first, count)
        .repeat_interleave(repeats, 2)
        .reshape({s.batch, s.seq, ranks, count * repeats / ranks * s.head_dim});
  };
  const at::Tensor parts = at::cat(
      {of_rank(0, s.heads, 1), of_rank(s.heads, s.kv_heads, heads.repeats), of_rank(s.heads + s.kv_heads, s.kv_heads, heads.repeats)}, 3);
  return to_heads(parts, pass).view({s.batch * heads.shape.seq, parts.size(3)});
}

void ulysses(const at::Tensor& qkv, const AttentionShape& s, const ScoreDropout& dropout, const Pass& pass, at::Tensor& out,
             at::Tensor& lse) {
  const HeadCut heads(s, dropout, sequence_cut(pass));
  const std::int64_t width = heads.shape.heads * s.head_dim;
  at::Tensor attended = at::empty({s.batch * heads.shape.seq, width}, out.options());
  attend(qkv_to_heads(qkv, s, heads, pass), heads.shape, heads.dropout, attended, lse);
  const at::Tensor own = from_heads(attended.view({s.batch, heads.shape.seq, width}), pass);
  out.view(own.sizes()).copy_(own);
}

void ulysses_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& s,
                      const ScoreDropout& dropout, const Pass& pass, at::Tensor& qkv) {
  const HeadCut heads(s, dropout, sequence_cut(pass));
  const std::int64_t ranks = pass.context_group.size();
  const std::int64_t width = heads.shape.heads * s.head_dim;
  at::Tensor grads = qkv_to_heads(qkv, s, heads, pass);
  const std::vector<std::int64_t> sizes = {s.batch, s.seq, ranks, width};
  const at::Tensor both = to_heads(at::cat({out_grad.view(sizes), out.view(sizes)}, 3), pass).view({-1, 2 * width});
  attend_backward(both.narrow(1, 0, width).contiguous(), both.narrow(1, width, width).contiguous(), lse, heads.shape, heads.dropout, grads);
  const at::Tensor own = from_heads(grads.view({s.batch, heads.shape.seq, grads.size(1)}), pass);
  const at::Tensor rows = qkv.view({s.batch, s.seq, s.heads + 2 * s.kv_heads, s.head_dim});
  // Repeated heads have a part of the gradient each.
  const auto put = [&](std::int64_t first_of_rank, std::int64_t of_rank, std::int64_t first, std::int64_t count, std::int64_t repeats) {
    const at::Tensor parts = own.narrow(3, first_of_rank * s.head_dim, of_rank * s.head_dim);
    rows.narrow(2, first, count).copy_(parts.reshape({s.batch, s.seq, count, repeats, s.head_dim}).sum(3));
  };
  const std::int64_t kv = heads.shape.kv_heads;
  put(0, heads.shape.heads, 0, s.heads, 1);
  put(heads.shape.heads, kv, s.heads, s.kv_heads, heads.repeats);
  put(heads.shape.heads + kv, kv, s.heads + s.kv_heads, s.kv_heads, heads.repeats);
}

}  // namespace

std::vector<std::int64_t> lse_sizes(const AttentionShape& shape, const Pass& pass) {
  const std::int64_t ranks = pass.context == model::ContextKind::ulysses ? sequence_cut(pass).size : 1;
  return {shape.batch, shape.heads / ranks, shape.seq * ranks};
}

void attention(const at::Tensor& qkv, const AttentionShape& shape, const ScoreDropout& dropout, const Pass& pass, at::Tensor& out,
               at::Tensor& lse) {
  if (alone(pass)) return attend(qkv, shape, dropout, out, lse);
  (pass.context == model::ContextKind::ulysses ? ulysses : ring)(qkv, shape, dropout, pass, out, lse);
}

void attention_backward(const at::Tensor& out_grad, const at::Tensor& out, const at::Tensor& lse, const AttentionShape& shape,
                        const ScoreDropout& dropout, const Pass& pass, at::Tensor& qkv) {
  if (alone(pass)) return attend_backward(out_grad, out, lse, shape, dropout, qkv);
  (pass.context == model::ContextKind::ulysses ? ulysses_backward : ring_backward)(out_grad, out, lse, shape, dropout, pass, qkv);
}

}  // namespace tessera::nn
