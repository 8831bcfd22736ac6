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

// The ranks of stage `other` with which rank `index` of the adjacent stage `own` exchanges messages. The tensors between the two stages
// have `elements` elements of `element` bytes for a whole micro-batch.
//
// Where both stages are cut alike, ranks of equal index hold the same part of the batch and pass it on whole, tensor-parallel ranks too,
// which all hold the same; where both are sequence-parallel, each has its part of it and passes that on. Elsewhere rank i of w takes the
// interval [i / w, (i + 1) / w) of the elements, and sends to each rank of the other stage what their intervals share: of 4 elements, rank
// 0 of 2 sends one element each to ranks 0 and 1 of 4.
std::vector<Peer> peers_of(const plan::Plan& plan, int own, int other, int index, std::int64_t elements, Bytes element);
// For a rank that stands for all ranks of its stage: the one peer that stands for all ranks of the other stage.
Peer peer_of_all(const plan::Plan& plan, int own, int other, std::int64_t elements, Bytes element);

}  // namespace tessera::program
