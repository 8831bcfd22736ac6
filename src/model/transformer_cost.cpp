#include "model/transformer_cost.hpp"

#include <algorithm>
#include <numeric>

#include "base/error.hpp"
#include "model/forms.hpp"
#include "model/layer_cost.hpp"
#include "model/work.hpp"

namespace tessera::model {
namespace {

constexpr std::int64_t kF32 = kF32Bytes;
using Axis = Exchange::Axis;

// Sizes of one block on one rank, as numbers of elements.
struct Sizes {
  std::int64_t element;   // bytes
  std::int64_t rows;      // tokens
  std::int64_t rows_cut;  // tokens where sequence parallelism divides them
  std::int64_t hidden;
};

std::int64_t split(std::int64_t whole, std::int64_t parts) { return (whole + parts - 1) / parts; }

Sizes sizes_of(const BlockSpec& block, const BlockShard& shard) {
  const std::int64_t rows = shard.micro_batch_size * split(block.dim("seq"), shard.context_parallel);
  return {element_size(shard.precision).value, rows, shard.sequence_parallel ? split(rows, shard.tensor_parallel) : rows,
          block.dim("hidden")};
}

std::int64_t option(const BlockSpec& block, const char* key, std::int64_t otherwise) {
  const auto found = block.dims.find(key);
  return found == block.dims.end() ? otherwise : static_cast<std::int64_t>(found->second);
}

bool kept_by_nn(const BlockSpec& block) {
  if (!computed_by_nn(block) || option(block, "autograd", 0) != 0) return false;
  return is_of_t5(block) ? option(block, "attention_fused", 0) == 0 : option(block, "attention_fused", 1) != 0;
}

// Of a norm: the parameters of each column, and what it keeps of each row in f32.
std::int64_t norm_parameters(const BlockSpec& block) { return option(block, "layer_norm", 0) * option(block, "biases", 0) + 1; }
std::int64_t norm_statistics(const BlockSpec& block) { return option(block, "layer_norm", 0) + 1; }

// An all-reduce of so many f32 sums at the end of the backward pass.
void add_norm_gradients(BlockCost& cost, const BlockShard& shard, std::int64_t count) {
  if (shard.tensor_parallel == 1 || count == 0) return;
  const int end = static_cast<int>(cost.backward_operators.size());
  cost.backward_exchanges.push_back(
      {.axis = Axis::tensor, .operation = "all_reduce", .bytes = Bytes(count * kF32), .ready = end, .needed = end});
}

}  // namespace

BlockCost embedding_cost(const BlockSpec& block, const BlockShard& shard) {
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const bool cut = shard.sequence_parallel && shard.tensor_parallel > 1;
  const std::int64_t whole = element * rows * hidden;
  const std::int64_t passed = element * rows_cut * hidden;
  Work work(shard);
  // The gradient of the output is read, and the rows of the table's f32 gradient are read and written.
  work.lookup("lookup", 2 * whole, rows * hidden * (element + 2 * kF32));
  if (shard.tensor_parallel > 1) {
    work.exchange_forward({Axis::tensor, cut ? "reduce_scatter" : "all_reduce", Bytes(whole)});
    if (cut) work.exchange_backward({Axis::tensor, "all_gather", Bytes(whole)});
  }
  // Learned positions and token types are added in one kernel, then a norm where there is one.
  if (option(block, "positions", 0) + option(block, "token_types", 0) > 0)
    work.pointwise("positions", 3 * passed, passed + 2 * passed / element * kF32);
  const bool nn = kept_by_nn(block);
  const bool normed = option(block, "embedding_norm", 0) != 0;
  if (normed) {
    work.pointwise("norm", 2 * passed, 3 * passed);
    work.keep(passed + (nn ? norm_statistics(block) * kF32 * rows_cut : 0));
  }
  if (block.dims.contains("dropout")) {
    // nn/ makes its masks again.
    const std::int64_t mask = nn ? 0 : rows_cut * hidden;
    work.pointwise("dropout", 2 * passed + mask, 2 * passed + mask);
    work.keep(mask);
  }
  BlockCost cost = std::move(work).finish(0);
  cost.saved_for_weight = cost.output = Bytes(passed);
  cost.all_reduce_size = Bytes(whole);
  cost.forward_all_reduces = shard.tensor_parallel > 1 && !cut ? 1 : 0;
  // All rows, beside this rank's.
  if (cut) cost.forward_workspace = cost.backward_workspace = Bytes(whole);
  if (!nn) return cost;
  if (normed && cut) add_norm_gradients(cost, shard, norm_parameters(block) * hidden);
  // The rows of positions, or the gradient behind the norm or the dropout.
  if (option(block, "positions", 0) > 0 || normed) cost.forward_workspace += Bytes(passed);
  if (normed || block.dims.contains("dropout")) cost.backward_workspace += Bytes(passed);
  return cost;
}

namespace {

// Bytes of what stands behind the middle norm of nn/'s layer.
struct FeedForwardBytes {
  std::int64_t kept = 0;
  std::int64_t forward = 0;   // beside what is kept and passed on
  std::int64_t backward = 0;  // of the input half, beside the gradients of input and output
  std::int64_t held = 0;      // of these, until the weight half has run
  std::int64_t weights = 0;   // read by a forward pass
  std::int64_t forward_traffic = 0;
  std::int64_t backward_traffic = 0;
  std::int64_t replicated = 0;  // elements of weights that every tensor-parallel rank holds, each with a part of their gradient
};

// Of one map, or of a gate and what it multiplies, and of a last map.
FeedForwardBytes dense_bytes(const BlockSpec& block, const BlockShard& shard) {
  const Sizes sizes = sizes_of(block, shard);
  const std::int64_t ffn = shard_extent(block.dim("ffn"), shard.tensor_parallel);
  const std::int64_t vector = sizes.element * sizes.rows * ffn;
  const std::int64_t first = option(block, "gated", 1) != 0 ? 2 : 1;
  return {.kept = first * vector,
          .forward = vector,
          .backward = vector,
          .held = vector,
          .weights = sizes.element * (first + 1) * sizes.hidden * ffn,
          .forward_traffic = (2 * first + 2) * vector,
          .backward_traffic = (6 * first + 4) * vector};
}

// Tokens spread evenly.
FeedForwardBytes experts_bytes(const BlockSpec& block, const BlockShard& shard) {
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const std::int64_t experts = block.dim("experts");
  const std::int64_t width = shard_extent(block.dim("expert_ffn"), shard.tensor_parallel);
  const std::int64_t copies = rows * block.dim("experts_per_token");
  const std::int64_t vector = element * copies * width;
  const std::int64_t moved = element * copies * hidden;
  const std::int64_t inputs = shard.expert_parallel > 1 ? moved : 0;  // in the order in which they came
  const std::int64_t passed = element * rows * hidden;
  const std::int64_t shared_width = shard_extent(option(block, "shared_ffn", 0), shard.tensor_parallel);
  const std::int64_t shared = element * rows * shared_width;  // a vector of the experts that see all tokens
  const std::int64_t gates = option(block, "shared_gate", 0) != 0 ? 1 : 0;
  const std::int64_t sum = shared > 0 ? passed : 0;
  return {.kept = kF32 * rows * (experts + gates) + kF32 * copies + inputs + 2 * vector + 2 * shared,
          .forward = std::max({vector + moved + sum, 2 * moved + passed + sum, moved + shared + sum}),
          .backward = moved + vector + shared + sum + std::max(vector, 2 * moved + passed),
          .held = moved + vector + shared + 8 * copies,
          .weights = element * hidden * (3 * (width * split(experts, shard.expert_parallel) + shared_width) + experts + gates),
          .forward_traffic = 6 * vector + 6 * moved + 6 * shared + 3 * sum,
          .backward_traffic = 16 * vector + 10 * moved + 16 * shared + 5 * sum,
          .replicated = (experts + gates) * hidden};
}

// What nn/'s attention holds beside the rest while it exchanges with context-parallel ranks.
struct ContextBytes {
  std::int64_t forward = 0;
  std::int64_t backward = 0;
};

// Ring: sums, and the gradients that go round, are f32. Ulysses: queries, keys and values are sent again in the backward pass rather than
// kept twice, and the output goes with its gradient. `queries` and `keys` are elements of a row on a tensor-parallel rank.
ContextBytes set_context_exchanges(BlockCost& cost, const BlockSpec& block, const BlockShard& shard, std::int64_t queries,
                                   std::int64_t keys) {
  if (shard.context_parallel == 1) return {};
  const Sizes sizes = sizes_of(block, shard);
  const std::int64_t kv_heads = block.dim("kv_heads") / shard.tensor_parallel;
  const auto of_context = [](const Exchange& exchange) { return exchange.axis == Axis::context; };
  if (shard.context == ContextKind::ring) {
    const std::int64_t steps = shard.context_parallel - 1;
    for (std::vector<Exchange>* const exchanges : {&cost.forward_exchanges, &cost.recomputed_exchanges})
      for (Exchange& exchange : *exchanges)
        if (of_context(exchange)) exchange.bytes = Bytes(steps * sizes.rows * keys * sizes.element);
    for (Exchange& exchange : cost.backward_exchanges)
      if (of_context(exchange)) exchange.bytes = Bytes(steps * sizes.rows * keys * (sizes.element + kF32));
    return {sizes.rows * (queries * (3 * kF32 + 2 * sizes.element) + 3 * keys * sizes.element),
            sizes.rows * (queries * (kF32 + 3 * sizes.element) + keys * (4 * kF32 + 3 * sizes.element))};
  }
  const std::int64_t repeats = shard.context_parallel / std::gcd<std::int64_t>(shard.context_parallel, kv_heads);
  const Bytes sent(sizes.rows * (queries + repeats * keys) * sizes.element);
  const Bytes attended(sizes.rows * queries * sizes.element);
  for (std::vector<Exchange>* const exchanges : {&cost.forward_exchanges, &cost.recomputed_exchanges}) {
    const auto first = std::find_if(exchanges->begin(), exchanges->end(), of_context);
    if (first == exchanges->end()) continue;
    first->bytes = sent;
    std::find_if(std::next(first), exchanges->end(), of_context)->bytes = attended;
  }
  const auto output = std::find_if(cost.backward_exchanges.begin(), cost.backward_exchanges.end(), of_context);
  const auto input = std::find_if(std::next(output), cost.backward_exchanges.end(), of_context);
  output->bytes = 2 * attended;
  input->bytes = sent;
  Exchange again = *output;
  again.bytes = sent;
  cost.backward_exchanges.insert(output, again);
  // Around the kernel that runs again.
  if (shard.recompute == Recompute::selective) {
    const int end = static_cast<int>(cost.recomputed_operators.size());
    cost.recomputed_exchanges.push_back({.axis = Axis::context, .operation = "all_to_all", .bytes = sent});
    cost.recomputed_exchanges.push_back({.axis = Axis::context, .operation = "all_to_all", .bytes = attended, .ready = end, .needed = end});
  }
  return {3 * sent.value, 2 * sent.value + 4 * attended.value};
}

// Latent attention's maps, whose gradients autograd makes.
struct LatentBytes {
  std::int64_t kept = 0;       // beside queries, keys and values
  std::int64_t workspace = 0;  // while they are made
  std::int64_t weights = 0;
  std::int64_t shared = 0;  // elements of weights that every tensor-parallel rank holds, each with a part of their gradient
};

LatentBytes latent_bytes(const BlockSpec& block, const BlockShard& shard, std::int64_t heads) {
  const std::int64_t low = option(block, "kv_lora", 0);
  if (low == 0) return {};
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const std::int64_t query_rank = option(block, "q_lora", 0), rope = block.dim("rope_dim");
  const std::int64_t query = heads * block.dim("head_dim"), key_value = heads * (block.dim("nope_dim") + block.dim("v_dim"));
  const std::int64_t shared = hidden * (query_rank + low + rope) + query_rank + low;
  // A norm of low rank keeps what it reads and what it writes, and one vector between, in f32 but for the second. What it reads stands in
  // one tensor with the keys that are rotated, unless it is converted.
  const std::int64_t beside = element == kF32 ? element * rope : 0;
  const std::int64_t of_row =
      element * hidden + beside + (2 * kF32 + element) * (query_rank + low) + kF32 * (rope + (query_rank > 0 ? 2 : 1));
  return {rows * of_row, rows * element * (2 * query + 2 * key_value),
          element * (shared + query * (query_rank > 0 ? query_rank : hidden) + key_value * low), shared};
}

// What the halves of a layer have in common in nn/, norm(x + drop(f(x))), beside what f keeps and needs.
struct Sublayer {
  std::int64_t kept = 0;      // beside input and sum
  std::int64_t core = 0;      // of that, what selective recomputation does not keep
  std::int64_t sums = 0;      // of that, what the input half of the backward pass drops
  std::int64_t forward = 0;   // beside what is kept and passed on
  std::int64_t again = 0;     // beside these, where all is computed again
  std::int64_t backward = 0;  // beside the gradients of output and sum
  std::int64_t held = 0;      // of that, until the weight half has run
  std::int64_t weights = 0;   // bytes
  std::int64_t forward_traffic = 0;
  std::int64_t backward_traffic = 0;
};

void set_sublayer(BlockCost& cost, const BlockSpec& block, const BlockShard& shard, const Sublayer& of) {
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const std::int64_t input = element * rows_cut * hidden;
  const std::int64_t kept = 2 * input + norm_statistics(block) * kF32 * rows_cut + of.kept;
  const bool recomputed = shard.recompute == Recompute::full, selective = shard.recompute == Recompute::selective;
  const bool cut = shard.sequence_parallel && shard.tensor_parallel > 1;
  const std::int64_t gathered = cut ? element * rows * hidden : 0;
  const std::int64_t dropped = block.dims.contains("dropout") ? input : 0;
  cost.saved = Bytes(recomputed ? input : selective ? kept - of.core : kept);
  // The sum goes, and the gradient of the output stays, all rows of it.
  cost.saved_for_weight = Bytes(kept - input - of.sums + element * rows * hidden + of.held);
  cost.forward_traffic = Bytes(of.weights + element * rows_cut * 5 * hidden + of.forward_traffic);
  cost.backward_traffic =
      Bytes(2 * of.weights + element * rows_cut * 10 * hidden + of.backward_traffic + 2 * kF32 * (of.weights / element));
  if (cut) add_norm_gradients(cost, shard, norm_parameters(block) * hidden);
  cost.forward_workspace = Bytes(gathered + of.forward + (recomputed ? of.again : 0));
  cost.backward_workspace = Bytes(2 * input + dropped + 2 * gathered + std::max(of.backward, element * rows * hidden) +
                                  (recomputed  ? kept - input
                                   : selective ? of.core
                                               : 0));
}

// What nn/'s layer keeps and needs: its norms and its activation are computed again in the backward pass, from what is kept anyway.
BlockCost kept_by_tessera(const BlockSpec& block, const BlockShard& shard, const FeedForwardBytes& feed_forward) {
  BlockCost cost = layer_cost(block, shard);
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const std::int64_t degree = shard.tensor_parallel;
  const std::int64_t heads = block.dim("heads") / degree;
  const std::int64_t attended = heads * block.dim("head_dim");
  const std::int64_t keys = 2 * (block.dim("kv_heads") / degree) * block.dim("head_dim");  // and values
  const std::int64_t qkv = attended + keys;
  const ContextBytes context = set_context_exchanges(cost, block, shard, attended, keys);
  // Queries, keys and values with normalized heads, beside those that the projection wrote and that are kept.
  const std::int64_t turned = option(block, "qk_norm", 0) != 0 ? qkv : 0;

  const LatentBytes latent = latent_bytes(block, shard, heads);
  const std::int64_t maps =
      latent.weights > 0 ? latent.weights + element * hidden * heads * block.dim("v_dim") : element * hidden * (qkv + attended);

  const std::int64_t weights = maps + feed_forward.weights;
  const std::int64_t width = qkv + attended;  // what each row keeps of attention beside input and middle
  const std::int64_t input = element * rows_cut * hidden;
  const std::int64_t sums = kF32 * rows * heads;  // the scores' logarithmic sums
  const std::int64_t core = element * rows * attended + sums;
  // Norms behind the sums keep both sums, and the input beside them.
  const std::int64_t kept = (option(block, "post_norm", 0) != 0 ? 3 : 2) * input + element * rows * width +
                            2 * norm_statistics(block) * kF32 * rows_cut + sums + latent.kept + feed_forward.kept;
  const bool recomputed = shard.recompute == Recompute::full;
  cost.saved = Bytes(recomputed ? input : shard.recompute == Recompute::selective ? kept - core : kept);
  // Gradients take the places of what the maps made; those of both halves' outputs, all rows of them, come on top. The gradients of latent
  // attention's weights are there at once.
  cost.saved_for_weight = Bytes(kept - sums - latent.kept + latent.weights + 2 * element * rows * hidden + feed_forward.held);
  cost.forward_traffic =
      Bytes(weights + element * (rows_cut * 9 * hidden + rows * (2 * width + 2 * turned)) + feed_forward.forward_traffic);
  cost.backward_traffic = Bytes(2 * weights + element * (rows_cut * 20 * hidden + rows * (5 * width + 5 * turned)) +
                                feed_forward.backward_traffic + 2 * kF32 * (weights / element));
  const bool cut = shard.sequence_parallel && degree > 1;
  // Ranks have the gradients of heads' norms from their own heads alone, and those of other norms from their own rows.
  add_norm_gradients(cost, shard,
                     latent.shared + (turned > 0 ? 2 * block.dim("head_dim") : 0) + (cut ? 2 * norm_parameters(block) * hidden : 0));
  add_norm_gradients(cost, shard, feed_forward.replicated);
  // Forward: the feed-forward network's hidden vector, beside what is kept and passed on. Backward: the gradients of the output
  // and of the middle of the layer and that hidden vector, beside the gradient passed on; weights come after, with the
  // hidden vector or one normalized input at a time. Where rows are cut, all rows of both gradients and of a partial sum stand beside.
  const std::int64_t row = element * rows;
  const std::int64_t gathered = cut ? row * hidden : 0;
  cost.forward_workspace =
      Bytes(gathered +
            (recomputed ? std::max({feed_forward.forward + feed_forward.kept, row * (qkv + std::max(attended, turned)),
                                    row * qkv + latent.kept + latent.workspace})
                        : std::max({feed_forward.forward, context.forward - feed_forward.kept, latent.workspace - feed_forward.kept})) +
            (recomputed ? context.forward : 0));
  const std::int64_t attention =
      std::max<std::int64_t>({row * (attended + turned) + context.backward - input, gathered, latent.workspace, 0});
  // The gradients of what is dropped, of either half of the layer.
  const std::int64_t dropped = block.dims.contains("dropout") ? 2 * input : 0;
  cost.backward_workspace =
      Bytes(2 * input + dropped + 2 * gathered + std::max({feed_forward.backward, feed_forward.held + attention, row * hidden}) +
            (recomputed                                ? kept - input
             : shard.recompute == Recompute::selective ? core
                                                       : 0));
  return cost;
}

// What nn/ keeps of a layer of T5, whose gradients autograd makes: what each norm reads and what it makes, queries, keys, values and what
// is attended, shares before and behind dropout, and what the feed-forward network's activation and last map read. Masks of dropout are
// drawn again, and what is encoded is the encoder's end's.
BlockCost t5_layer_cost(BlockSpec block, const BlockShard& shard) {
  block.dims["attention_fused"] = 0;
  BlockCost cost = layer_cost(block, shard);
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const bool drops = block.dims.contains("dropout");
  const std::int64_t heads = block.dim("heads");
  const std::int64_t width = heads * block.dim("head_dim");
  const std::int64_t input = element * rows * hidden;
  const std::int64_t vector = element * rows * block.dim("ffn");
  const std::int64_t norm = 2 * input + kF32 * rows;
  const auto attention = [&](std::int64_t keys) {
    return norm + 2 * element * width * (rows + shard.micro_batch_size * keys) + (drops ? 2 : 1) * element * rows * heads * keys;
  };
  const std::int64_t encoded = option(block, "cross_seq", 0);
  const std::int64_t feed_forward = norm + (option(block, "gated", 1) != 0 ? 4 : drops ? 2 : 1) * vector;
  if (shard.recompute != Recompute::full)
    cost.saved = Bytes(attention(block.dim("seq")) + (encoded > 0 ? attention(encoded) : 0) + feed_forward);
  cost.saved_for_weight = Bytes(element * block.parameter_count());
  return cost;
}

}  // namespace

BlockCost transformer_layer_cost(const BlockSpec& block, const BlockShard& shard) {
  if (is_of_t5(block) && kept_by_nn(block)) return t5_layer_cost(block, shard);
  return kept_by_nn(block) ? kept_by_tessera(block, shard, dense_bytes(block, shard)) : layer_cost(block, shard);
}

BlockCost attention_sublayer_cost(const BlockSpec& block, const BlockShard& shard) {
  BlockCost cost = attention_cost(block, shard);
  if (!kept_by_nn(block)) return cost;
  const Sizes sizes = sizes_of(block, shard);
  const std::int64_t heads = block.dim("heads") / shard.tensor_parallel;
  const std::int64_t attended = heads * block.dim("head_dim");
  const std::int64_t keys = 2 * (block.dim("kv_heads") / shard.tensor_parallel) * block.dim("head_dim");  // and values
  const std::int64_t width = 2 * attended + keys;  // queries, keys, values, and what is attended
  const ContextBytes context = set_context_exchanges(cost, block, shard, attended, keys);
  const std::int64_t row = sizes.element * sizes.rows;
  const std::int64_t sums = kF32 * sizes.rows * heads;  // the scores' logarithmic sums
  set_sublayer(cost, block, shard,
               {.kept = row * width + sums,
                .core = row * attended + sums,
                .sums = sums,
                .forward = context.forward,
                .again = row * width,
                .backward = row * attended + context.backward,
                .weights = sizes.element * sizes.hidden * width,
                .forward_traffic = 2 * row * width,
                .backward_traffic = 5 * row * width});
  return cost;
}

BlockCost feed_forward_sublayer_cost(const BlockSpec& block, const BlockShard& shard) {
  BlockCost cost = feed_forward_cost(block, shard);
  if (!kept_by_nn(block)) return cost;
  const FeedForwardBytes bytes = dense_bytes(block, shard);
  set_sublayer(cost, block, shard,
               {.kept = bytes.kept,
                .forward = bytes.forward,
                .again = bytes.kept,
                .backward = std::max(bytes.backward, bytes.held),
                .held = bytes.held,
                .weights = bytes.weights,
                .forward_traffic = bytes.forward_traffic,
                .backward_traffic = bytes.backward_traffic});
  return cost;
}

BlockCost moe_layer_cost(const BlockSpec& block, const BlockShard& shard) {
  if (shard.whole_experts || !kept_by_nn(block)) return layer_cost(block, shard);
  BlockCost cost = kept_by_tessera(block, shard, experts_bytes(block, shard));
  // Each tensor-parallel rank sends all rows to its peers' parts of the experts.
  const Sizes sizes = sizes_of(block, shard);
  const Bytes moved(sizes.element * sizes.rows * block.dim("experts_per_token") * sizes.hidden);
  for (std::vector<Exchange>* const exchanges : {&cost.forward_exchanges, &cost.backward_exchanges, &cost.recomputed_exchanges})
    for (Exchange& exchange : *exchanges)
      if (exchange.axis == Axis::expert) exchange.bytes = moved;
  return cost;
}

BlockCost lm_head_cost(const BlockSpec& block, const BlockShard& shard) {
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const std::int64_t degree = shard.tensor_parallel;
  const bool cut = shard.sequence_parallel && degree > 1;
  const std::int64_t vocab = split(block.dim("vocab"), degree);
  const bool autograd = !computed_by_nn(block) || option(block, "autograd", 0) != 0;
  const std::int64_t input = element * rows_cut * hidden;
  const std::int64_t whole = element * rows * hidden;
  const std::int64_t chunk = autograd ? rows : std::min(rows, lm_head_chunk_rows(vocab, hidden));

  Work work(shard);
  if (option(block, "head_norm", 1) != 0) {
    work.pointwise("norm", 2 * input, 3 * input);
    work.keep(input);
  }
  const bool transforms = option(block, "head_transform", 0) != 0;
  if (transforms) {
    // nn/ gathers the rows of the map's input and of its gradient for that of its weight.
    for (int gathered = 0; gathered < 2 && cut && !autograd; ++gathered) work.exchange_backward({Axis::tensor, "all_gather", Bytes(whole)});
    work.linear("transform", rows_cut, hidden, hidden);
    work.pointwise("activation", 2 * input, 3 * input);
    work.pointwise("transform_norm", 2 * input, 3 * input);
    work.keep(3 * input);
  }
  work.keep(input);
  if (degree > 1) {
    if (cut) work.exchange_forward({Axis::tensor, "all_gather", Bytes(whole)});
    work.exchange_backward({Axis::tensor, cut ? "reduce_scatter" : "all_reduce", Bytes(whole), autograd});
    if (cut && autograd) work.exchange_backward({Axis::tensor, "all_gather", Bytes(whole), true});
  }
  work.linear("logits", rows, vocab, hidden);
  const int chunks = static_cast<int>(split(rows, chunk));
  if (degree > 1) {
    work.exchange_forward({Axis::tensor, "all_reduce", Bytes(kF32 * chunk * chunks), false, chunks});
    work.exchange_forward({Axis::tensor, "all_reduce", Bytes(2 * kF32 * chunk * chunks), false, chunks});
  }
  // Logits in f32: read for the maximum, read and written as exponentials; read and written as gradients.
  work.pointwise("cross_entropy", 3 * kF32 * rows * vocab, 2 * kF32 * rows * vocab);
  work.keep(kF32 * rows * vocab);
  BlockCost cost = std::move(work).finish(input);

  const bool recomputed = shard.recompute == Recompute::full;
  cost.output = Bytes(kF32 + 8);
  cost.all_reduce_size = Bytes(whole);
  cost.backward_all_reduces = degree > 1 && !cut ? 1 : 0;
  const std::int64_t logits = vocab * (kF32 + (shard.precision == Precision::f32 ? 0 : element));
  cost.forward_workspace = Bytes(chunk * (logits + 3 * kF32) + whole);
  cost.backward_workspace = Bytes(kF32 * hidden + (recomputed ? whole + cost.forward_workspace.value : 0));
  if (autograd) {
    cost.backward_workspace = Bytes(rows * vocab * element + whole + (recomputed ? cost.forward_workspace.value : 0));
    return cost;
  }
  // nn/ goes through the logits in chunks, on to the gradients of input and weight at once, and keeps no logits.
  cost.saved = Bytes(recomputed ? input : (transforms ? 2 : 1) * input + whole + norm_statistics(block) * kF32 * rows_cut);
  cost.saved_for_weight = Bytes(transforms ? 2 * input : 0);
  if (transforms) cost.backward_workspace += Bytes(cut ? 2 * whole : input);
  if (cut) add_norm_gradients(cost, shard, norm_parameters(block) * hidden);
  // Each chunk reads the weights twice, and reads and writes their gradient.
  cost.forward_traffic = Bytes(rows * (5 * hidden * element + 6 * vocab * kF32) + chunks * vocab * hidden * (2 * element + 2 * kF32));
  cost.backward_traffic = Bytes(4 * whole);
  return cost;
}

BlockCost final_norm_cost(const BlockSpec& block, const BlockShard& shard) {
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const std::int64_t bytes = element * rows_cut * hidden;
  Work work(shard);
  work.pointwise("norm", 2 * bytes, 3 * bytes);
  work.keep(2 * bytes);
  // The output is held for the layers that read it, computed again or not.
  BlockCost cost = std::move(work).finish(2 * bytes);
  cost.output = cost.backward_workspace = Bytes(bytes);
  return cost;
}

BlockCost projector_cost(const BlockSpec& block, const BlockShard& shard) {
  const auto [element, rows, rows_cut, hidden] = sizes_of(block, shard);
  const std::int64_t in = block.dim("in");
  Work work(shard);
  work.linear("projector", rows_cut, hidden, in);
  work.keep(rows_cut * in * work.operand());
  BlockCost cost = std::move(work).finish(element * rows_cut * in);
  cost.output = Bytes(element * rows_cut * hidden);
  return cost;
}

std::int64_t lm_head_chunk_rows(std::int64_t columns, std::int64_t hidden) {
  constexpr std::int64_t kChunkBytes = 16 << 20;
  constexpr std::int64_t kMinimumRows = 128;
  return std::max({kMinimumRows, hidden / 2, kChunkBytes / (columns * kF32)});
}

}  // namespace tessera::model
