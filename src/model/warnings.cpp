#include "model/warnings.hpp"

#include "base/error.hpp"

namespace tessera::model {

std::vector<std::string> warnings_of(const JobSpec& job) {
  std::vector<std::string> out;
  const TrainSpec& train = job.train;
  if (train.lr_schedule.warmup > train.steps)
    out.push_back(text("train.schedule.warmup is ", train.lr_schedule.warmup, " and train.steps ", train.steps,
                       ": the run ends before its learning rate has reached train.optimizer.lr"));
  return out;
}

}  // namespace tessera::model
