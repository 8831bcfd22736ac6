#include "program/peers.hpp"

#include <algorithm>

namespace tessera::program {
namespace {

using plan::Stage;
using plan::Strategy;

// Elements [begin, end) of a micro-batch.
struct Elements {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t count() const { return end - begin; }
};

// One side of the boundary between two stages.
struct Side {
  const Stage& stage;
  const Strategy& strategy;  // of the block at the boundary
};

Side side_of(const plan::Plan& plan, int stage, int other) {
  const Stage& of = plan.stages[stage];
  return {of, stage < other ? of.runs.back().strategy : of.runs.front().strategy};
}

bool alike(const Side& a, const Side& b) {
  return a.strategy.same_layout(b.strategy) && a.strategy.sequence_parallel == b.strategy.sequence_parallel &&
         a.stage.shares == b.stage.shares;
}

// What a rank and its tensor-parallel peers all hold: of one of cp parts of a replica.
Elements held_by(const plan::Plan& plan, const Side& side, int index, std::int64_t elements) {
  const int tp = side.strategy.tp;
  const int first = index / tp * tp;
  return {plan.items_before(side.stage, first, elements), plan.items_before(side.stage, first + tp, elements)};
}

// Of what a replica holds, on each of its tensor-parallel ranks.
std::int64_t part_of(const Elements& held, int tp) { return (held.count() + tp - 1) / tp; }

Elements passed_by(const plan::Plan& plan, const Side& side, int index, std::int64_t elements) {
  const Elements held = held_by(plan, side, index, elements);
  const std::int64_t part = part_of(held, side.strategy.tp);
  const std::int64_t begin = std::min(held.end, held.begin + index % side.strategy.tp * part);
  return {begin, std::min(held.end, begin + part)};
}

// The same of samples that context parallelism may cut.
Part passed_part(const plan::Plan& plan, const Side& side, int index, std::int64_t each) {
  const Strategy& s = side.strategy;
  const int first = index / (s.cp * s.tp) * s.cp * s.tp;
  Part out{
      .samples_before = plan.items_before(side.stage, first, plan.samples()), .context_index = index / s.tp % s.cp, .context_size = s.cp};
  out.samples = plan.items_before(side.stage, first + s.cp * s.tp, plan.samples()) - out.samples_before;
  const Elements held{0, out.samples * each / s.cp};
  const std::int64_t part = part_of(held, s.tp);
  out.begin = std::min(held.end, index % s.tp * part);
  out.end = std::min(held.end, out.begin + part);
  return out;
}

Bytes gathered_by(const plan::Plan& plan, const Side& side, int index, const BoundaryTensors& tensors) {
  const int tp = side.strategy.tp;
  if (tp == 1 || side.strategy.sequence_parallel) return {};
  return part_of(held_by(plan, side, index, tensors.elements), tp) * tp * tensors.element;
}

}  // namespace

Boundary boundary_of(const plan::Plan& plan, int own, int other, int index, const BoundaryTensors& tensors) {
  const Side mine = side_of(plan, own, other);
  const Side theirs = side_of(plan, other, own);
  const auto message = [&](int peer, const Elements& elements) {
    return Peer{theirs.stage.ranks[peer], elements.begin * tensors.element, elements.count() * tensors.element};
  };
  const Elements passed = passed_by(plan, mine, index, tensors.elements);
  Boundary out;
  if (alike(mine, theirs)) {
    out.peers = {message(index, mine.strategy.sequence_parallel ? passed : held_by(plan, mine, index, tensors.elements))};
    return out;
  }
  out.gathered = gathered_by(plan, mine, index, tensors);
  if (mine.strategy.cp > 1 || theirs.strategy.cp > 1) {
    const std::int64_t each = tensors.elements / plan.samples();
    const Part own_part = passed_part(plan, mine, index, each);
    for (int peer = 0; peer < theirs.stage.width(); ++peer) {
      const Part other_part = passed_part(plan, theirs, peer, each);
      const std::int64_t count = shared_count(own_part, other_part, each);
      if (count == 0) continue;
      out.peers.push_back({theirs.stage.ranks[peer], {}, count * tensors.element});
      out.crossed.push_back({own_part, other_part, each});
    }
    return out;
  }
  for (int peer = 0; peer < theirs.stage.width(); ++peer) {
    const Elements other_passed = passed_by(plan, theirs, peer, tensors.elements);
    const Elements common{std::max(passed.begin, other_passed.begin), std::min(passed.end, other_passed.end)};
    if (common.count() > 0) out.peers.push_back(message(peer, common));
  }
  return out;
}

Boundary boundary_of_all(const plan::Plan& plan, int own, int other, const BoundaryTensors& tensors) {
  const Side mine = side_of(plan, own, other);
  const Side theirs = side_of(plan, other, own);
  const bool same = alike(mine, theirs);
  const int parts = !same ? 1 : mine.strategy.sequence_parallel ? mine.strategy.ranks() : mine.strategy.copies();
  const Bytes bytes = tensors.elements / parts * tensors.element;
  Boundary out{.peers = {{theirs.stage.ranks.front(), {}, bytes}}};
  if (!same) out.gathered = gathered_by(plan, mine, 0, tensors);
  return out;
}

}  // namespace tessera::program
