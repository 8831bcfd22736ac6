#include "model/layer_cost.hpp"

#include <algorithm>
#include <string_view>

#include "model/work.hpp"

namespace tessera::model {
namespace {

using Axis = Exchange::Axis;

std::int64_t split(std::int64_t whole, std::int64_t parts) { return (whole + parts - 1) / parts; }

class Layer {
 public:
  Layer(const BlockSpec& block, const BlockShard& shard)
      : block_(block),
        shard_(shard),
        work_(shard),
        tp_(shard.tensor_parallel),
        cp_(shard.context_parallel),
        autograd_(option("autograd", 0) != 0),
        dropout_(probability("dropout") > 0),
        // Dropped scores pass through memory.
        fused_(option("attention_fused", dropout_ ? 0 : 1) != 0),
        causal_(option("causal", 1) != 0),
        element_(work_.element()),
        hidden_(block.dim("hidden")),
        seq_(block.dim("seq")),
        rows_(shard.micro_batch_size * split(seq_, cp_)),
        rows_cut_(shard.sequence_parallel ? split(rows_, tp_) : rows_) {}

  BlockCost attention() && {
    norm("norm");
    self_attention();
    residual(false);
    return finish(work_.kept());
  }

  BlockCost feed_forward() && {
    norm("norm");
    dense(block_.dim("ffn"), true);
    residual(false);
    return finish(0);
  }

  BlockCost cost() && {
    const bool sandwich = option("norms", 2) == 4;
    const std::int64_t attention_begin = work_.kept();
    norm("norm");
    option("kv_lora", 0) > 0 ? latent_attention() : self_attention();
    residual(sandwich);
    if (const std::int64_t cross = option("cross_seq", 0); cross > 0) {
      norm("cross_norm");
      cross_attention(cross);
      residual(false);
    }
    const std::int64_t attention_kept = work_.kept() - attention_begin;
    norm("ffn_norm");
    option("experts", 0) > 0 ? experts() : dense(block_.dim("ffn"), true);
    residual(sandwich);
    return finish(attention_kept);
  }

 private:
  std::int64_t option(const char* key, std::int64_t otherwise) const {
    const auto found = block_.dims.find(key);
    return found == block_.dims.end() ? otherwise : static_cast<std::int64_t>(found->second);
  }

  double probability(const char* key) const {
    const auto found = block_.dims.find(key);
    return found == block_.dims.end() ? 0 : found->second;
  }

  void norm(std::string_view name) {
    const std::int64_t bytes = rows_cut_ * hidden_ * element_;
    work_.pointwise(name, 2 * bytes, 3 * bytes);
    work_.keep(bytes);
  }

  // What the layer adds to its input: dropout and sum in one kernel, after another norm in a sandwich.
  void residual(bool normalized) {
    if (normalized) norm("post_norm");
    const std::int64_t mask = dropout_ ? rows_cut_ * hidden_ : 0;
    const std::int64_t bytes = rows_cut_ * hidden_ * element_;
    work_.pointwise("residual", 3 * bytes + mask, dropout_ ? 2 * bytes + mask : 3 * bytes);
    work_.keep(mask);
  }

  // What makes the sums that tensor-parallel ranks add up.
  enum class By { one_product, several };

  // Before a map whose outputs are divided among tensor-parallel ranks. The kept part of the input is gathered again in the backward pass,
  // beside other products. Megatron-LM also reduces the input's gradient beside the gradient of the weight.
  void enter_columns(By by, bool gathered_again = true) {
    work_.keep(rows_cut_ * hidden_ * work_.operand());
    if (tp_ == 1) return;
    const Bytes whole(rows_ * hidden_ * element_);
    if (!shard_.sequence_parallel) {
      work_.exchange_backward({Axis::tensor, "all_reduce", whole, autograd_, 1, pieces(by)});
      return;
    }
    work_.exchange_forward({Axis::tensor, "all_gather", whole, false});
    work_.exchange_backward({Axis::tensor, "reduce_scatter", whole, autograd_});
    if (gathered_again) work_.exchange_backward({Axis::tensor, "all_gather", whole, true});
  }

  // The encoder's output, which all layers read and which the encoder's end keeps for them.
  void enter_encoded(std::int64_t rows) {
    if (tp_ == 1) return;
    const Bytes whole(rows * hidden_ * element_);
    if (shard_.sequence_parallel) work_.exchange_forward({Axis::tensor, "all_gather", whole, false});
    work_.exchange_backward({Axis::tensor, shard_.sequence_parallel ? "reduce_scatter" : "all_reduce", whole, autograd_});
  }

  // After a map whose inputs are divided.
  void leave_rows(By by) {
    if (tp_ == 1) return;
    const Bytes whole(rows_ * hidden_ * element_);
    if (!shard_.sequence_parallel) {
      work_.exchange_forward({Axis::tensor, "all_reduce", whole, false, 1, pieces(by)});
      return;
    }
    work_.exchange_forward({Axis::tensor, "reduce_scatter", whole, false});
    work_.exchange_backward({Axis::tensor, "all_gather", whole, false});
  }

  int pieces(By by) const { return by == By::one_product && !autograd_ ? summed_pieces(rows_, Bytes(rows_ * hidden_ * element_)) : 1; }

  struct Heads {
    std::int64_t queries;  // of this tensor-parallel rank
    std::int64_t keys;
    std::int64_t k_dim;
    std::int64_t v_dim;
    std::int64_t key_rows;  // tokens whose keys and values this rank projects
    std::int64_t key_seq;   // positions that each query may see, mask aside
    bool masked;
  };

  // Share of the pairs of queries and keys that the mask leaves.
  double visible(const Heads& heads) const {
    const double n = static_cast<double>(heads.key_seq);
    return heads.masked ? (n + 1) / (2 * n) * within_window(heads) : 1;
  }

  // Share of the pairs under the causal mask that a window leaves.
  double within_window(const Heads& heads) const {
    const double n = static_cast<double>(heads.key_seq);
    const double window = static_cast<double>(option("window", 0));
    if (!heads.masked || window <= 0 || window >= n) return 1;
    return (2 * n - window + 1) * window / (n * (n + 1));
  }

  // Queries, keys and values are there; leaves the values' weighted sums, [rows, queries * v_dim].
  void core(const Heads& heads) {
    const std::int64_t query_bytes = rows_ * heads.queries * heads.k_dim * element_;
    const std::int64_t key_bytes = heads.key_rows * heads.keys * (heads.k_dim + heads.v_dim) * element_;
    const std::int64_t out_bytes = rows_ * heads.queries * heads.v_dim * element_;
    work_.keep(query_bytes + key_bytes);
    const bool ulysses = cp_ > 1 && shard_.context == ContextKind::ulysses;
    const std::int64_t count = shard_.micro_batch_size * (ulysses ? split(heads.queries, cp_) : heads.queries);
    const std::int64_t queries = ulysses ? seq_ : split(seq_, cp_);
    if (ulysses) {
      // Fewer key-value heads than ranks are sent more than once.
      const std::int64_t repeated = std::max<std::int64_t>(1, split(cp_, heads.keys));
      exchange_both({Axis::context, "all_to_all", Bytes(query_bytes + repeated * key_bytes), false});
    }
    work_.begin_core();
    if (cp_ > 1 && !ulysses) {
      const int steps = static_cast<int>(cp_) - 1;
      work_.open_beside({Axis::context, "send", Bytes(key_bytes * steps), true, steps},
                        {Axis::context, "send", Bytes(2 * key_bytes * steps), true, 2 * steps});
    }
    if (fused_) {
      work_.fused_attention(count, queries, heads.key_seq, heads.k_dim, heads.v_dim, {visible(heads), within_window(heads)},
                            query_bytes + key_bytes + out_bytes);
      work_.keep(kF32Bytes * count * queries);
    } else {
      unfused(count, queries, heads);
    }
    if (cp_ > 1 && !ulysses) work_.close_beside();
    work_.end_core();
    // What the output's projection reads; the fused kernel's gradient reads it too, unrounded.
    work_.keep(rows_ * heads.queries * heads.v_dim * work_.operand() + (fused_ && work_.operand() != element_ ? out_bytes : 0));
    if (ulysses) exchange_both({Axis::context, "all_to_all", Bytes(out_bytes), false});
  }

  void unfused(std::int64_t count, std::int64_t queries, const Heads& heads) {
    const std::int64_t pairs = count * queries * heads.key_seq;
    scores_ = std::max(scores_, pairs * element_);
    work_.product("scores", count, queries, heads.key_seq, heads.k_dim);
    if (option("relative_bias", 0) != 0) work_.pointwise("bias", 2 * pairs * element_, pairs * element_);
    work_.pointwise("softmax", 2 * pairs * element_, 3 * pairs * element_);
    work_.keep(pairs * element_);
    if (dropout_) {
      work_.pointwise("softmax_dropout", 2 * pairs * element_ + pairs, 2 * pairs * element_ + pairs);
      work_.keep(pairs * element_ + pairs);
    }
    work_.product("values", count, queries, heads.v_dim, heads.key_seq);
  }

  void exchange_both(const Exchange& exchange) {
    work_.exchange_forward(exchange);
    work_.exchange_backward(exchange);
  }

  void self_attention() {
    const std::int64_t head_dim = block_.dim("head_dim");
    const Heads heads{split(block_.dim("heads"), tp_), split(block_.dim("kv_heads"), tp_), head_dim, head_dim, rows_, seq_, causal_};
    const std::int64_t turned = rows_ * (heads.queries + heads.keys) * head_dim * element_;
    enter_columns(By::one_product);
    work_.linear("qkv", rows_, (heads.queries + 2 * heads.keys) * head_dim, hidden_);
    if (option("qk_norm", 0) != 0) {
      work_.pointwise("qk_norm", 2 * turned, 3 * turned);
      work_.keep(turned);
    }
    if (option("rotary", 1) != 0) work_.pointwise("rotary", 2 * turned, 2 * turned);
    core(heads);
    work_.linear("attention_out", rows_, hidden_, heads.queries * head_dim);
    leave_rows(By::one_product);
  }

  void cross_attention(std::int64_t encoded) {
    const std::int64_t head_dim = block_.dim("head_dim");
    const Heads heads{split(block_.dim("heads"), tp_),
                      split(block_.dim("kv_heads"), tp_),
                      head_dim,
                      head_dim,
                      shard_.micro_batch_size * split(encoded, cp_),
                      encoded,
                      false};
    enter_columns(By::several);
    enter_encoded(heads.key_rows);
    work_.linear("cross_q", rows_, heads.queries * head_dim, hidden_);
    work_.linear("cross_kv", heads.key_rows, 2 * heads.keys * head_dim, hidden_);
    core(heads);
    work_.linear("cross_out", rows_, hidden_, heads.queries * head_dim);
    leave_rows(By::several);
  }

  // The maps to low rank are whole on every rank; those from it are divided by heads. nn/ keeps their whole input.
  void latent_attention() {
    const std::int64_t rank = block_.dim("kv_lora");
    const std::int64_t query_rank = option("q_lora", 0);
    const std::int64_t nope = block_.dim("nope_dim");
    const std::int64_t rope = block_.dim("rope_dim");
    const std::int64_t v_dim = block_.dim("v_dim");
    const std::int64_t count = split(block_.dim("heads"), tp_);
    enter_columns(By::several, autograd_);
    std::int64_t query_input = hidden_;
    if (query_rank > 0) {
      work_.linear("q_down", rows_, query_rank, hidden_);
      low_rank_norm("q_norm", query_rank);
      query_input = query_rank;
    }
    work_.linear("q_up", rows_, count * (nope + rope), query_input);
    work_.linear("kv_down", rows_, rank + rope, hidden_);
    low_rank_norm("kv_norm", rank);
    work_.linear("kv_up", rows_, count * (nope + v_dim), rank);
    const std::int64_t joined = 2 * rows_ * count * (nope + rope) * element_;
    work_.pointwise("rotary", 2 * joined, 2 * joined);
    core({count, count, nope + rope, v_dim, rows_, seq_, causal_});
    work_.linear("attention_out", rows_, hidden_, count * v_dim);
    leave_rows(By::one_product);
  }

  void low_rank_norm(std::string_view name, std::int64_t rank) {
    work_.pointwise(name, 2 * rows_ * rank * element_, 3 * rows_ * rank * element_);
    work_.keep(rows_ * rank * (element_ + work_.operand()));
  }

  // Between the first and the second map of a feed-forward network.
  void activation(std::int64_t rows, std::int64_t width) {
    const std::int64_t in = option("gated", 1) != 0 ? 2 * width : width;
    work_.pointwise("activation", rows * (in + width) * element_, rows * (2 * in + width) * element_);
    work_.keep(rows * ((option("relu", 0) != 0 ? in - width : in) * element_ + width * work_.operand()));
    const std::int64_t gradients = rows * (in + width) * element_;
    activation_gradients_ = std::max(activation_gradients_, gradients);
  }

  void dense(std::int64_t whole, bool own_input) {
    const std::int64_t width = split(whole, tp_);
    if (own_input) enter_columns(By::one_product);
    work_.linear(own_input ? "ffn_in" : "shared_in", rows_, option("gated", 1) != 0 ? 2 * width : width, hidden_);
    activation(rows_, width);
    work_.linear(own_input ? "ffn_out" : "shared_out", rows_, hidden_, width);
    if (own_input) leave_rows(By::one_product);
  }

  // Tokens spread evenly over the experts. Every rank of a tensor-parallel group has its part of each of its experts.
  void experts() {
    const std::int64_t count = block_.dim("experts");
    const std::int64_t each = block_.dim("experts_per_token");
    const std::int64_t ep = shard_.expert_parallel;
    const bool whole = shard_.whole_experts;
    const std::int64_t width = whole ? block_.dim("expert_ffn") : split(block_.dim("expert_ffn"), tp_);
    const std::int64_t local = split(count, ep);
    const std::int64_t sent = (whole ? split(rows_, tp_) : rows_) * each;
    const std::int64_t tokens = split(sent, local);  // of one expert: `ep` ranks send to it what this rank sends to all
    const std::int64_t moved = sent * hidden_ * element_;
    enter_columns(By::several);
    work_.linear("router", rows_, count, hidden_);
    work_.keep(rows_ * count * kF32Bytes);
    work_.pointwise("dispatch", 2 * moved, 2 * moved);
    const Exchange crossing{Axis::expert, "all_to_all", Bytes(shard_.sequence_parallel && !whole ? split(moved, tp_) : moved), false};
    // Tokens that are on their way do not keep the experts that all tokens pass from computing.
    const std::int64_t shared = option("shared_ffn", 0);
    Exchange beside = crossing;
    beside.overlaps = shared > 0;
    if (ep > 1) work_.open_beside(beside, beside);
    if (shared > 0) dense(shared, false);
    if (option("shared_gate", 0) != 0) work_.linear("shared_gate", rows_, 1, hidden_);
    if (ep > 1) work_.close_beside();
    work_.keep(sent * hidden_ * work_.operand());
    work_.linear("experts_in", tokens, option("gated", 1) != 0 ? 2 * width : width, hidden_, local);
    activation(sent, width);
    work_.linear("experts_out", tokens, hidden_, width, local);
    work_.keep(moved);
    if (ep > 1) exchange_both(crossing);
    work_.pointwise("combine", moved + rows_ * hidden_ * element_, 2 * moved);
    leave_rows(By::several);
  }

  BlockCost finish(std::int64_t attention_kept) {
    const std::int64_t kept = work_.kept();
    const std::int64_t core = work_.kept_core();
    const std::int64_t passed = rows_cut_ * hidden_ * element_;
    const std::int64_t gathered = shard_.sequence_parallel && tp_ > 1 ? rows_ * hidden_ * element_ : 0;
    BlockCost cost = std::move(work_).finish(passed);
    cost.output = Bytes(passed);
    const bool full = shard_.recompute == Recompute::full;
    const std::int64_t again = full ? kept - passed : shard_.recompute == Recompute::selective ? core : 0;
    // Forward: what one half keeps when nothing may be kept, else one score matrix. Backward: the gradients beside one another in
    // the attention or in the feed-forward network, the residual's, and what was computed again.
    cost.forward_workspace = Bytes(gathered + (full ? std::max(attention_kept, kept - attention_kept) : scores_));
    cost.backward_workspace = Bytes(gathered + passed + std::max(2 * scores_ + rows_ * hidden_ * element_, activation_gradients_) + again);
    if (tp_ > 1 && !shard_.sequence_parallel) {
      for (const Exchange& exchange : cost.forward_exchanges) cost.forward_all_reduces += exchange.operation == "all_reduce";
      for (const Exchange& exchange : cost.backward_exchanges) cost.backward_all_reduces += exchange.operation == "all_reduce";
    }
    cost.all_reduce_size = cost.output;
    return cost;
  }

  const BlockSpec& block_;
  const BlockShard& shard_;
  Work work_;
  const std::int64_t tp_;
  const std::int64_t cp_;
  const bool autograd_;
  const bool dropout_;
  const bool fused_;
  const bool causal_;
  const std::int64_t element_;
  const std::int64_t hidden_;
  const std::int64_t seq_;
  const std::int64_t rows_;      // tokens
  const std::int64_t rows_cut_;  // tokens where sequence parallelism divides them
  std::int64_t scores_ = 0;      // bytes of one matrix of scores that leaves the chip
  std::int64_t activation_gradients_ = 0;
};

}  // namespace

int summed_pieces(std::int64_t rows, Bytes bytes) {
  constexpr std::int64_t kLeast = 64 << 10;
  for (const int pieces : {4, 2})
    if (rows % pieces == 0 && bytes.value / pieces >= kLeast) return pieces;
  return 1;
}

BlockCost layer_cost(const BlockSpec& block, const BlockShard& shard) { return Layer(block, shard).cost(); }
BlockCost attention_cost(const BlockSpec& block, const BlockShard& shard) { return Layer(block, shard).attention(); }
BlockCost feed_forward_cost(const BlockSpec& block, const BlockShard& shard) { return Layer(block, shard).feed_forward(); }

}  // namespace tessera::model
