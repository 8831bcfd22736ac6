// A model of blocks that autograd differentiates, one of which reads what the first has made.
#pragma once

#include "model/job.hpp"

namespace tessera::train {

// Six layers between an embedding and a block that joins the embedding's second output in again. Its blocks are registered once.
model::JobSpec skip_job();

}  // namespace tessera::train
