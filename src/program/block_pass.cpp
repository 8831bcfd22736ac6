#include "program/block_pass.hpp"

#include <algorithm>
#include <utility>

namespace tessera::program {
namespace {

using model::Exchange;
using model::Operator;

bool may_overlap(const Exchange& exchange, const BesideRules& rules) {
  if (exchange.axis == Exchange::Axis::tensor) return rules.weight_gradients;
  return exchange.axis != Exchange::Axis::expert || rules.shared_experts;
}

// The product that a tensor-parallel exchange is cut into pieces with: the one that reads what is gathered, or makes what is
// scattered. -1: none.
int product_beside(const std::vector<Operator>& operators, const Exchange& exchange) {
  if (exchange.axis != Exchange::Axis::tensor || exchange.ready != exchange.needed) return -1;
  const int op = exchange.operation == "all_gather" ? exchange.needed : exchange.operation == "reduce_scatter" ? exchange.ready - 1 : -1;
  if (op < 0 || op >= static_cast<int>(operators.size())) return -1;
  return operators[op].kind == Operator::Kind::matmul ? op : -1;
}

Bytes piece_of(Bytes whole, int index, int pieces) { return Bytes(whole.value * (index + 1) / pieces - whole.value * index / pieces); }

}  // namespace

BlockPass block_pass(const std::vector<Operator>& operators, const std::vector<Exchange>& exchanges, const BesideRules& rules) {
  const int count = static_cast<int>(operators.size());
  std::vector<int> first(operators.size() + 1, 1);  // pieces of each operator; below, the index of its first one
  if (rules.pieces > 1)
    for (const Exchange& exchange : exchanges)
      if (const int op = product_beside(operators, exchange); op >= 0) first[op] = rules.pieces;
  BlockPass out;
  out.computing.reserve(operators.size() + 4 * exchanges.size());
  for (int op = 0; op < count; ++op) {
    const int pieces = std::exchange(first[op], static_cast<int>(out.computing.size()));
    out.computing.insert(out.computing.end(), pieces, {op, pieces});
  }
  first.back() = static_cast<int>(out.computing.size());
  for (int e = 0; e < static_cast<int>(exchanges.size()); ++e) {
    const Exchange& exchange = exchanges[e];
    const int needed = exchange.overlaps && !may_overlap(exchange, rules) ? exchange.ready : exchange.needed;
    const int after = first[exchange.ready] - 1;
    const int before = first[needed];
    const int op = rules.pieces > 1 ? product_beside(operators, exchange) : -1;
    if (rules.second_micro_batch && exchange.axis == Exchange::Axis::expert) {
      out.exchanges.push_back({e, exchange.bytes, -1, first.back(), true});
      continue;
    }
    if (op < 0) {
      out.exchanges.push_back({e, exchange.bytes, after, before});
      continue;
    }
    const bool gathers = exchange.operation == "all_gather";
    for (int piece = 0; piece < rules.pieces; ++piece) {
      const int beside = first[op] + piece;
      out.exchanges.push_back({e, piece_of(exchange.bytes, piece, rules.pieces), gathers ? after : beside, gathers ? beside : before});
    }
  }
  std::stable_sort(out.exchanges.begin(), out.exchanges.end(), [](const auto& a, const auto& b) { return a.after < b.after; });
  return out;
}

}  // namespace tessera::program
