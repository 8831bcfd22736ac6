// Internal to the compiler: what ranks of neighbouring stages pass to each other.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "plan/plan.hpp"

namespace tessera::program {

// A rank of the neighbouring stage, and the bytes of the message of one micro-batch in either direction.
struct Peer {
  int rank = -1;
  Bytes bytes;
};

// The peers in stage `other` of rank `index` of stage `own`, its neighbour on other ranks. `elements`: of the tensors between the
// two, for the whole micro-batch, of `element` bytes each.
//
// Where both sides of the boundary are cut alike, equal indices hold the same part of the batch and pass it on whole (also among
// tensor-parallel ranks, which hold the same). Elsewhere rank i of w stands for the elements [i / w, (i + 1) / w) of the
// micro-batch, and exchanges what its interval shares with another's.
std::vector<Peer> peers_of(const plan::Plan& plan, int own, int other, int index, std::int64_t elements, Bytes element);
// Of a rank that stands for all of its stage: its one peer stands for all of the other stage.
Peer peer_of_all(const plan::Plan& plan, int own, int other, std::int64_t elements, Bytes element);

}  // namespace tessera::program
