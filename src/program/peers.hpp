// Internal to the compiler: what ranks of neighbouring stages pass to each other.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "plan/plan.hpp"
#include "program/program.hpp"

namespace tessera::program {

// A rank of the neighbouring stage, and the message of one micro-batch in either direction.
struct Peer {
  int rank = -1;
  Bytes offset;  // Instruction::offset
  Bytes bytes;
  int crossed = -1;  // Instruction::crossed
};

// A rank's exchanges of the tensors between two stages.
struct Boundary {
  std::vector<Peer> peers;                 // in the order of their parts
  std::vector<CrossedParts> crossed = {};  // by peer, where either side cuts sequences and the other cuts them otherwise
  // Where tensor-parallel ranks each receive a part of what all of them need, and gather it: bytes of the whole; 0 elsewhere.
  Bytes gathered = {};
  int gather_group = -1;  // index into Program::groups
};

// The tensors between two stages, whole for one micro-batch.
struct BoundaryTensors {
  std::int64_t elements = 0;
  Bytes element;
};

// Of rank `index` of stage `own` with the adjacent stage `other`; the compiler sets indices into the program.
//
// Where both stages are cut alike, ranks of equal index hold the same part of the batch and pass it on whole, tensor-parallel ranks too,
// which all hold the same; where both are sequence-parallel, each has its part of it and passes that on. Elsewhere the tensor-parallel
// ranks of a replica divide what it holds into equal parts (the last may be shorter), and each exchanges with each rank of the other stage
// what their parts share: of 4 elements, rank 0 of 2 replicas sends one element each to ranks 0 and 1 of 4. Tensor-parallel ranks then
// gather the parts that they have received. With sequence parallelism each has and needs its part alone.
Boundary boundary_of(const plan::Plan& plan, int own, int other, int index, const BoundaryTensors& tensors);
// For a rank that stands for all ranks of its stage: its one peer stands for all ranks of the other stage.
Boundary boundary_of_all(const plan::Plan& plan, int own, int other, const BoundaryTensors& tensors);

}  // namespace tessera::program
