// internal: experts under other labels, in the state that ranks hold.
#pragma once

#include "comm/comm.hpp"
#include "model/model.hpp"
#include "train/placer.hpp"
#include "train/store.hpp"

namespace tessera::train {

// Between two steps: expert e of each of these blocks becomes labels[e], with its weights, its row of the router and the optimizer's state
// of both. The model computes the same as before. All ranks call it, and hold no part of a block's experts cut by tensor parallelism.
void relabel_experts(Store& store, comm::Communicator& comm, const model::ModelSpec& model, const ExpertLabels& labels);

}  // namespace tessera::train
