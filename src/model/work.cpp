#include "model/work.hpp"

#include <algorithm>

namespace tessera::model {
namespace {

using Kind = Operator::Kind;

double flops_of(std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  return 2.0 * static_cast<double>(batch) * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

}  // namespace

Work::Work(const BlockShard& shard)
    : recompute_(shard.recompute),
      element_(element_size(shard.precision).value),
      operand_(shard.precision == Precision::f8 ? 1 : element_) {
  cost_.forward_operators.reserve(24);
  cost_.backward_operators.reserve(40);
}

Operator& Work::forward(Kind kind, std::string_view name, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  Operator& made = cost_.forward_operators.emplace_back();
  made.kind = kind;
  made.name = name;
  made.batch = batch;
  made.m = m;
  made.n = n;
  made.k = k;
  made.flops = Flops(kind == Kind::elementwise || kind == Kind::lookup ? 0 : flops_of(batch, m, n, k));
  return made;
}

Operator& Work::backward(Kind kind, std::string_view name, std::string_view suffix, std::int64_t batch, std::int64_t m, std::int64_t n,
                         std::int64_t k) {
  Operator& made = cost_.backward_operators.emplace_back();
  made.kind = kind;
  made.name.reserve(name.size() + suffix.size());
  made.name.append(name).append(suffix);
  made.batch = batch;
  made.m = m;
  made.n = n;
  made.k = k;
  made.flops = Flops(kind == Kind::elementwise || kind == Kind::lookup ? 0 : flops_of(batch, m, n, k));
  return made;
}

void Work::linear(std::string_view name, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t batch) {
  forward(Kind::matmul, name, batch, m, n, k).traffic = Bytes(batch * (operand_ * (m * k + n * k) + element_ * m * n));
  Operator& weight = backward(Kind::matmul, name, "_wgrad", batch, n, k, m);
  weight.traffic = Bytes(batch * (operand_ * (m * n + m * k) + 2 * kF32Bytes * n * k));
  weight.weight_half = true;
  if (!data_)
    backward(Kind::matmul, name, "_dgrad", batch, m, k, n).traffic = Bytes(batch * (operand_ * (m * n + n * k) + element_ * m * k));
  forward_flops_ += flops_of(batch, m, n, k);
  backward_flops_ += (data_ ? 1 : 2) * flops_of(batch, m, n, k);
  data_ = false;
}

void Work::product(std::string_view name, std::int64_t batch, std::int64_t m, std::int64_t n, std::int64_t k) {
  const Bytes traffic(element_ * batch * (m * k + k * n + m * n));
  Operator& made = forward(Kind::matmul, name, batch, m, n, k);
  made.traffic = traffic;
  if (in_core_ && recompute_ == Recompute::selective) cost_.recomputed_operators.push_back(made);
  backward(Kind::matmul, name, "_dright", batch, k, n, m).traffic = traffic;
  backward(Kind::matmul, name, "_dleft", batch, m, k, n).traffic = traffic;
  forward_flops_ += flops_of(batch, m, n, k);
  backward_flops_ += 2 * flops_of(batch, m, n, k);
}

void Work::fused_attention(std::int64_t heads, std::int64_t queries, std::int64_t keys, std::int64_t k_dim, std::int64_t v_dim,
                           PairShares shares, std::int64_t traffic) {
  const double scores = flops_of(heads, queries, keys, k_dim);
  const double values = flops_of(heads, queries, keys, v_dim);
  Operator& made = forward(Kind::attention, "attention", heads, queries, keys, k_dim);
  made.flops = Flops((scores + values) * shares.computed);
  made.traffic = Bytes(traffic);
  if (in_core_ && recompute_ == Recompute::selective) cost_.recomputed_operators.push_back(made);
  // The scores again, and four products for the gradients of queries, keys, values and probabilities. Inputs and outputs are read
  // and the gradients of the inputs written.
  Operator& again = backward(Kind::attention, "attention", "_grad", heads, queries, keys, k_dim);
  again.flops = Flops((3 * scores + 2 * values) * shares.computed);
  again.traffic = Bytes(2 * traffic);
  forward_flops_ += (scores + values) * shares.counted;
  backward_flops_ += (3 * scores + 2 * values) * shares.counted;
}

void Work::convolution(std::string_view name, std::int64_t images, std::int64_t pixels, std::int64_t out, std::int64_t window,
                       std::int64_t input_bytes) {
  const std::int64_t m = images * pixels;
  const std::int64_t output = element_ * m * out;
  const std::int64_t weight = window * out;
  forward(Kind::convolution, name, 1, m, out, window).traffic = Bytes(input_bytes + output + operand_ * weight);
  Operator& gradient = backward(Kind::convolution, name, "_wgrad", 1, out, window, m);
  gradient.traffic = Bytes(input_bytes + output + 2 * kF32Bytes * weight);
  gradient.weight_half = true;
  if (!data_) backward(Kind::convolution, name, "_dgrad", 1, m, window, out).traffic = Bytes(input_bytes + output + operand_ * weight);
  forward_flops_ += flops_of(1, m, out, window);
  backward_flops_ += (data_ ? 1 : 2) * flops_of(1, m, out, window);
  data_ = false;
}

void Work::pointwise(std::string_view name, std::int64_t forward_bytes, std::int64_t backward_bytes) {
  Operator& made = forward(Kind::elementwise, name, 1, 0, 0, 0);
  made.traffic = Bytes(forward_bytes);
  if (in_core_ && recompute_ == Recompute::selective) cost_.recomputed_operators.push_back(made);
  backward(Kind::elementwise, name, "_grad", 1, 0, 0, 0).traffic = Bytes(backward_bytes);
}

void Work::lookup(std::string_view name, std::int64_t forward_bytes, std::int64_t backward_bytes) {
  forward(Kind::lookup, name, 1, 0, 0, 0).traffic = Bytes(forward_bytes);
  Operator& gradient = backward(Kind::lookup, name, "_grad", 1, 0, 0, 0);
  gradient.traffic = Bytes(backward_bytes);
  gradient.weight_half = true;
}

void Work::keep(std::int64_t bytes) {
  kept_ += bytes;
  if (in_core_) kept_core_ += bytes;
}

void Work::exchange_forward(Exchange exchange) {
  exchange.ready = exchange.needed = static_cast<int>(cost_.forward_operators.size());
  cost_.forward_exchanges.push_back(exchange);
  if (!in_core_ || recompute_ != Recompute::selective) return;
  exchange.ready = exchange.needed = static_cast<int>(cost_.recomputed_operators.size());
  cost_.recomputed_exchanges.push_back(std::move(exchange));
}

// Until finish(), a backward exchange's places are counted from the end of the pass.
void Work::exchange_backward(Exchange exchange) {
  const bool gathers = exchange.operation == "all_gather";
  exchange.ready = exchange.needed = static_cast<int>(cost_.backward_operators.size());
  if (exchange.overlaps) exchange.needed += gathers ? 1 : 0;
  if (exchange.overlaps) exchange.ready = exchange.needed + 1;
  cost_.backward_exchanges.push_back(std::move(exchange));
}

void Work::open_beside(Exchange forward, Exchange backward) {
  open_ = cost_.forward_exchanges.size();
  open_again_ = cost_.recomputed_exchanges.size();
  open_backward_ = cost_.backward_exchanges.size();
  exchange_forward(std::move(forward));
  backward.overlaps = false;
  exchange_backward(std::move(backward));
  cost_.backward_exchanges.back().overlaps = true;
}

void Work::close_beside() {
  cost_.forward_exchanges[open_].needed = static_cast<int>(cost_.forward_operators.size());
  if (open_again_ < cost_.recomputed_exchanges.size())
    cost_.recomputed_exchanges[open_again_].needed = static_cast<int>(cost_.recomputed_operators.size());
  cost_.backward_exchanges[open_backward_].ready = static_cast<int>(cost_.backward_operators.size());
}

BlockCost Work::finish(std::int64_t input) && {
  std::reverse(cost_.backward_operators.begin(), cost_.backward_operators.end());
  std::reverse(cost_.backward_exchanges.begin(), cost_.backward_exchanges.end());
  const int backward = static_cast<int>(cost_.backward_operators.size());
  for (Exchange& exchange : cost_.backward_exchanges) {
    exchange.ready = std::max(0, backward - exchange.ready);
    exchange.needed = std::max(0, backward - exchange.needed);
  }
  if (recompute_ == Recompute::full) {
    cost_.recomputed_operators = cost_.forward_operators;
    cost_.recomputed_exchanges = cost_.forward_exchanges;
  }
  cost_.forward = Flops(forward_flops_);
  cost_.backward = Flops(backward_flops_);
  for (const Operator& step : cost_.forward_operators) cost_.forward_traffic += step.traffic;
  for (const Operator& step : cost_.backward_operators) cost_.backward_traffic += step.traffic;
  cost_.saved_for_weight = Bytes(kept_);
  cost_.saved = Bytes(recompute_ == Recompute::full ? input : recompute_ == Recompute::selective ? kept_ - kept_core_ : kept_);
  return std::move(cost_);
}

}  // namespace tessera::model
