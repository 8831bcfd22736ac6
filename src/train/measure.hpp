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
  // For blocks and the optimizer, roughly, and again for communication. Blocks are timed with micro-batches of 1 sample, of 4 unless 1
  // takes longer than this, and of 16 and so on where five values of each would fit. There are five values of everything, more of what
  // scatters while there is time, and three where five would take twice as long.
  Seconds budget;
  // That one sample lasts at least; many periods of a control group where workers are held to a share of a core.
  Seconds sample = Seconds(0.02);
};

// All workers of the communicator call it together and compute at the same time, as they will in training. Times are
// those of the slowest worker, as all workers' samples of a block together say. The profile holds what this number of workers and threads
// can tell.
profile::Profile measure(const model::JobSpec& job, comm::Communicator& comm, const MeasureOptions& options);

}  // namespace tessera::train
