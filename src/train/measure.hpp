// Measures the job's own blocks, the optimizer and the collectives on this host, for one number of workers and threads.
#pragma once

#include "comm/comm.hpp"
#include "model/job.hpp"
#include "profile/profile.hpp"

namespace tessera::train {

struct MeasureOptions {
  int threads = 1;           // of this worker
  std::string link = "shm";  // the name that collective times are filed under
  int per_host = 0;          // workers on each host; 0: all are on one
  // For blocks and the optimizer, roughly, and again for communication: small micro-batches come first, and blocks of large ones are
  // left out where five samples of each would not fit. Five samples are taken of the rest and of communication, more of what
  // scatters while there is time, and three where five would take twice as long. A pass of one sample is timed however long it takes.
  Seconds budget = Seconds(6);
  // That one sample lasts at least; many periods of a control group where workers are held to a share of a core.
  Seconds sample = Seconds(0.02);
};

// All workers of the communicator call it together and compute at the same time, as they will in training. Times are
// those of the slowest worker, as all workers' samples of a block together say. The profile holds what this number of workers and threads
// can tell.
profile::Profile measure(const model::JobSpec& job, comm::Communicator& comm, const MeasureOptions& options);

}  // namespace tessera::train
