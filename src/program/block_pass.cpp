#include "program/block_pass.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace tessera::program {
namespace {

using model::Exchange;
using model::Operator;

bool may_overlap(const Exchange& exchange, const BesideRules& rules) {
  switch (exchange.axis) {
    case Exchange::Axis::tensor: return rules.weight_gradients;
    case Exchange::Axis::expert: return rules.shared_experts;
    case Exchange::Axis::context:
    case Exchange::Axis::replica: break;
  }
  return true;
}

// The product that a tensor-parallel exchange is cut into pieces with: the one that reads what is gathered, or makes what is
// scattered. -1: none.
int product_beside(const std::vector<Operator>& operators, const Exchange& exchange) {
  if (exchange.axis != Exchange::Axis::tensor || exchange.ready != exchange.needed) return -1;
  const int op = exchange.operation == "all_gather" ? exchange.needed : exchange.operation == "reduce_scatter" ? exchange.ready - 1 : -1;
  if (op < 0 || op >= static_cast<int>(operators.size())) return -1;
  return operators[static_cast<std::size_t>(op)].kind == Operator::Kind::matmul ? op : -1;
}

Bytes piece_of(Bytes whole, int index, int pieces) { return Bytes(whole.value * (index + 1) / pieces - whole.value * index / pieces); }

[[noreturn]] void refuse(const std::string& what) {
  throw Error(ErrorCode::internal, "a block's pass: " + what, {}, "operators and exchanges whole and in order");
}

}  // namespace

BlockPass block_pass(const std::vector<Operator>& operators, const std::vector<Exchange>& exchanges, const BesideRules& rules) {
  const int count = static_cast<int>(operators.size());
  std::vector<int> first(operators.size() + 1, 1);  // pieces of each operator; below, the index of its first one
  if (rules.pieces > 1)
    for (const Exchange& exchange : exchanges)
      if (const int op = product_beside(operators, exchange); op >= 0) first[static_cast<std::size_t>(op)] = rules.pieces;
  BlockPass out;
  out.computing.reserve(operators.size() + 4 * exchanges.size());
  for (int op = 0; op < count; ++op) {
    const int pieces = std::exchange(first[static_cast<std::size_t>(op)], static_cast<int>(out.computing.size()));
    out.computing.insert(out.computing.end(), static_cast<std::size_t>(pieces), {op, pieces});
  }
  first.back() = static_cast<int>(out.computing.size());
  for (int e = 0; e < static_cast<int>(exchanges.size()); ++e) {
    const Exchange& exchange = exchanges[static_cast<std::size_t>(e)];
    const int needed = exchange.overlaps && !may_overlap(exchange, rules) ? exchange.ready : exchange.needed;
    const int after = first[static_cast<std::size_t>(exchange.ready)] - 1;
    const int before = first[static_cast<std::size_t>(needed)];
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
      const int beside = first[static_cast<std::size_t>(op)] + piece;
      out.exchanges.push_back({e, piece_of(exchange.bytes, piece, rules.pieces), gathers ? after : beside, gathers ? beside : before});
    }
  }
  std::stable_sort(out.exchanges.begin(), out.exchanges.end(), [](const auto& a, const auto& b) { return a.after < b.after; });
  return out;
}

void check(const BlockPass& pass, const std::vector<Operator>& operators, const std::vector<Exchange>& exchanges) {
  std::vector<int> first;  // step of each operator
  for (std::size_t step = 0; step < pass.computing.size();) {
    const auto [op, pieces] = pass.computing[step];
    if (op != static_cast<int>(first.size())) refuse(text("step ", step, " is of operator ", op, " and not of ", first.size()));
    first.push_back(static_cast<int>(step));
    for (int piece = 0; piece < pieces; ++piece, ++step)
      if (step >= pass.computing.size() || pass.computing[step].op != op || pass.computing[step].pieces != pieces)
        refuse(text("operator ", op, " lacks piece ", piece, " of ", pieces));
  }
  if (first.size() != operators.size()) refuse(text("it has ", first.size(), " of ", operators.size(), " operators"));
  const int end = static_cast<int>(pass.computing.size());
  first.push_back(end);
  std::vector<std::int64_t> moved(exchanges.size());
  std::vector<int> pieces_moved(exchanges.size());
  int begun = -1;
  for (const ExchangeStep& step : pass.exchanges) {
    if (step.exchange < 0 || step.exchange >= static_cast<int>(exchanges.size())) refuse(text("there is no exchange ", step.exchange));
    const auto index = static_cast<std::size_t>(step.exchange);
    const Exchange& exchange = exchanges[index];
    const std::string name = text(exchange.operation, " ", step.exchange);
    if (step.after < begun) refuse(name + " queues behind an exchange that begins later");
    begun = step.after;
    moved[index] += step.bytes.value;
    if (step.of_second) {
      if (exchange.axis != Exchange::Axis::expert || step.before != end) refuse(name + " of a second micro-batch is waited for");
      continue;
    }
    if (step.before <= step.after || step.after >= end) refuse(name + " waits for what waits for it");
    // Piece by piece, with the same piece of the product: the next pieces of a scatter are still computed, and the first ones of a
    // gather computed already.
    const int piece = pieces_moved[index]++;
    const int op = product_beside(operators, exchange);
    const bool cut = op >= 0 && pass.computing[static_cast<std::size_t>(first[static_cast<std::size_t>(op)])].pieces > 1;
    const int beside = cut ? first[static_cast<std::size_t>(op)] + piece : 0;
    const bool gathers = exchange.operation == "all_gather";
    if (step.after < (cut && !gathers ? beside : first[static_cast<std::size_t>(exchange.ready)] - 1))
      refuse(name + " begins before what it moves has been computed");
    if (step.before > (cut && gathers ? beside : first[static_cast<std::size_t>(exchange.needed)]))
      refuse(name + " ends after the operator that needs it");
  }
  for (std::size_t e = 0; e < exchanges.size(); ++e)
    if (moved[e] != exchanges[e].bytes.value)
      refuse(text(exchanges[e].operation, " ", e, " moves ", moved[e], " of ", exchanges[e].bytes.value, " bytes"));
}

}  // namespace tessera::program
