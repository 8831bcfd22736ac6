// Internal: what the parts of a uniform plan's price share.
#pragma once

#include "plan/uniform.hpp"
#include "profile/exchange_time.hpp"

namespace tessera::plan {

struct Pricing {
  // A gradient of 32 bits is read and written when a weight's gradient is added to it.
  static constexpr double kAccumulated = 8;

  Pricing(const UniformPlan& plan_, const Transformer& model_, const cluster::ResourceGroup& group, const profile::Calibration& calibration)
      : plan(plan_), model(model_), kernels(group.device, calibration, plan_.format), exchanges(group, calibration) {}

  const UniformPlan& plan;
  const Transformer& model;
  profile::Kernels kernels;
  profile::Exchanges exchanges;

  // Of a micro-batch on one rank.
  double tokens() const { return static_cast<double>(plan.micro_batch) * static_cast<double>(model.seq) / plan.cp; }
};

LayerTime layer_time(const Pricing& pricing, bool experts);

// One micro-batch on one stage.
struct StageTime {
  PassTime forward;
  PassTime backward;
  PassTime again;
  double forward_total() const { return forward.total(); }
  double backward_total() const { return backward.total() + again.total(); }
  double total() const { return forward_total() + backward_total(); }
};
std::vector<StageTime> stage_times(const Pricing& pricing, const std::vector<int>& layers);

}  // namespace tessera::plan
