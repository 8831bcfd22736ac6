// State in memory, by parameter name: given to and taken from other ranks, under whatever plan.
#pragma once

#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "comm/comm.hpp"

namespace tessera::train {

// What a rank holds of a run's state, in the terms of a checkpoint. Nothing where there are no pieces.
struct HeldState {
  checkpoint::State state;  // steps, tokens and what evaluations have shown
  std::vector<checkpoint::Piece> pieces;
};

// With tensors of its own, which nothing changes: a snapshot.
HeldState copied(const HeldState& held);
// Also what the other one holds, which must be of the same step.
HeldState joined(HeldState held, const HeldState& other);

// Gives rank `to` what is held and takes what rank `from` does. All ranks call it, as a ring or as pairs.
HeldState pass_on(comm::Communicator& comm, const HeldState& held, int to, int from);

// Fills the tensors of `wanted` from what all ranks hold, however either is cut. Where several ranks hold the same elements, they must hold
// the same bits; a rank's own come first. All ranks call it. Throws not_found on all of them, naming the tensor and the rank, where nobody
// holds what one wants; invalid_config where shapes or types differ.
void fill_from_all(comm::Communicator& comm, const std::vector<checkpoint::Piece>& held, std::vector<checkpoint::Piece>& wanted);

// What the state of all who hold something says; the same on all ranks, also on those that hold nothing. Throws invalid_config where they
// hold different steps, not_found where nobody holds anything.
checkpoint::State agreed_state(comm::Communicator& comm, const HeldState& held);

}  // namespace tessera::train
