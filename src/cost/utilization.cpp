#include "cost/cost.hpp"

namespace tessera::cost {

double utilization(const plan::Plan& plan, const model::ModelSpec& model, const cluster::ClusterSpec& cluster, Seconds step) {
  double peak = 0;
  for (const plan::RankPlace& place : plan.ranks) {
    const cluster::Device& device = cluster.groups[place.group].device;
    peak += device.peak_of(plan.precision).value * (device.is_cpu() ? place.threads : 1);
  }
  return model::training_flops_per_sample(model).value * static_cast<double>(plan.global_batch) / step.value / peak;
}

}  // namespace tessera::cost
