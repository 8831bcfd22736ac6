#include "model/warnings.hpp"

#include "base/error.hpp"

namespace tessera::model {

std::vector<std::string> warnings_of(const JobSpec& job) {
  std::vector<std::string> out;
  const TrainSpec& train = job.train;
  if (train.lr_schedule.warmup > train.steps)
    out.push_back(text("train.schedule.warmup is ", train.lr_schedule.warmup, " and train.steps ", train.steps,
                       ": the run ends before its learning rate has reached train.optimizer.lr"));
  if (const std::int64_t warmup = job.parameter_servers.optimizer.schedule.warmup; warmup > train.steps)
    out.push_back(text("parameter_servers.optimizer.schedule.warmup is ", warmup, " and train.steps ", train.steps,
                       ": the run ends before the rate of its tables has reached parameter_servers.optimizer.lr"));
  return out;
}

}  // namespace tessera::model
