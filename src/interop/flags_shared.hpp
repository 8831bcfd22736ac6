// Internal: plans with one strategy for all blocks, which is all that most systems can express.
#pragma once

#include <string>
#include <vector>

#include "plan/plan.hpp"

namespace tessera::interop {

struct SharedPlan {
  plan::Strategy strategy;  // of all blocks, without recompute; members that have no effect at these degrees have their defaults
  int pipeline_size = 1;
  int chunks = 1;                     // stages of a pipeline rank
  std::int64_t micro_batch_size = 1;  // samples
  // By stage in model order, which run each of its layers is in. One stage where there is one pipeline rank.
  std::vector<std::vector<const plan::StrategyRun*>> layers;

  bool all_layers(model::Recompute recompute) const;
};

// Of a model of embedding, layers and head. Throws invalid_config where blocks differ in more than recomputation, where the
// schedule is one of the plan's own, and where ranks are not numbered as launchers number processes: by node and device; stage
// outermost, then data-, context- and tensor-parallel index. `system` is the name in the message.
SharedPlan shared_plan(const plan::Plan& plan, const model::ModelSpec& model, const std::string& system);

[[noreturn]] void refuse_for(const std::string& system, const Where& where, const std::string& message, const std::string& expected = {},
                             const std::string& hint = {});

}  // namespace tessera::interop
