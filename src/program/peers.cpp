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

}  // namespace

std::vector<Peer> peers_of(const plan::Plan& plan, int own, int other, int index, std::int64_t elements, Bytes element) {
  const Stage& theirs = plan.stages[other];
  const auto [strategy, peers_strategy] = at_boundary(plan, own, other);
  if (strategy.same_layout(peers_strategy)) return {{theirs.ranks[index], elements / strategy.copies() * element}};
  const std::int64_t width = plan.stages[own].width();
  const std::int64_t peers_width = theirs.width();
  std::vector<Peer> out;
  for (std::int64_t peer = index * peers_width / width; peer * width < (index + 1) * peers_width; ++peer) {
    const std::int64_t begin = std::max(elements * index / width, elements * peer / peers_width);
    const std::int64_t end = std::min(elements * (index + 1) / width, elements * (peer + 1) / peers_width);
    out.push_back({theirs.ranks[peer], (end - begin) * element});
  }
  return out;
}

Peer peer_of_all(const plan::Plan& plan, int own, int other, std::int64_t elements, Bytes element) {
  const auto [strategy, peers_strategy] = at_boundary(plan, own, other);
  return {plan.stages[other].ranks.front(), strategy.same_layout(peers_strategy) ? elements / strategy.copies() * element : elements * element};
}

}  // namespace tessera::program
