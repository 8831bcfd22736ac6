#include "program/peers.hpp"

#include <algorithm>

namespace tessera::program {
namespace {

using plan::Stage;
using plan::Strategy;

// Those of the blocks at the boundary of two stages, of this side and of the other.
std::pair<const Strategy&, const Strategy&> at_boundary(const plan::Plan& plan, int own, int other) {
  const Stage& mine = plan.stages[own];
  const Stage& theirs = plan.stages[other];
  if (own < other) return {mine.runs.back().strategy, theirs.runs.front().strategy};
  return {mine.runs.front().strategy, theirs.runs.back().strategy};
}

bool cuts_rows(const Strategy& own, const Strategy& other) { return own.sequence_parallel && other.sequence_parallel; }

}  // namespace

std::vector<Peer> peers_of(const plan::Plan& plan, int own, int other, int index, std::int64_t elements, Bytes element) {
  const Stage& mine = plan.stages[own];
  const Stage& theirs = plan.stages[other];
  const auto [strategy, peers_strategy] = at_boundary(plan, own, other);
  const auto begin_of = [&](const Stage& stage, int rank) { return plan.items_before(stage, rank, elements); };
  if (strategy.same_layout(peers_strategy) && mine.shares == theirs.shares) {
    // Of one of cp parts of a replica, or of its tp parts.
    const int together = cuts_rows(strategy, peers_strategy) ? 1 : strategy.tp;
    const int first = index / together * together;
    return {{theirs.ranks[index], (begin_of(mine, first + together) - begin_of(mine, first)) * element}};
  }
  std::vector<Peer> out;
  for (int peer = 0; peer < theirs.width(); ++peer) {
    const std::int64_t begin = std::max(begin_of(mine, index), begin_of(theirs, peer));
    const std::int64_t end = std::min(begin_of(mine, index + 1), begin_of(theirs, peer + 1));
    if (end > begin) out.push_back({theirs.ranks[peer], (end - begin) * element});
  }
  return out;
}

Peer peer_of_all(const plan::Plan& plan, int own, int other, std::int64_t elements, Bytes element) {
  const auto [strategy, peers_strategy] = at_boundary(plan, own, other);
  const bool alike = strategy.same_layout(peers_strategy) && plan.stages[own].shares == plan.stages[other].shares;
  const int parts = !alike ? 1 : cuts_rows(strategy, peers_strategy) ? strategy.ranks() : strategy.copies();
  return {plan.stages[other].ranks.front(), elements / parts * element};
}

}  // namespace tessera::program
