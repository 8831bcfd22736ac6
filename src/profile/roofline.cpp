#include <algorithm>

#include "profile/roofline.hpp"

namespace tessera::profile {
namespace {

// Of the data sheet's figure: what matrix products of the sizes that training meets reach.
constexpr double kCpuCompute = 0.7;
constexpr double kAcceleratorCompute = 0.6;
constexpr double kMemory = 0.8;
// AdamW reads gradient, weight and both moments and writes the last three; clearing the gradient and its norm are two more
// passes. A copy of the weights for computation is written too.
constexpr double kAdamPasses = 9;
constexpr double kSgdPasses = 5;

}  // namespace

Rates rates_of(const cluster::Device& device, model::Precision precision, int threads, int neighbours) {
  if (!device.is_cpu())
    return {FlopsPerSecond(device.peak_of(precision).value * kAcceleratorCompute), BytesPerSecond(device.memory_bandwidth.value * kMemory)};
  const double cores = std::max(1, device.cores);
  const double busy = static_cast<double>(threads) * neighbours;
  const double share = std::min(1.0, cores / busy);
  return {FlopsPerSecond(device.peak_of(precision).value * kCpuCompute * threads * share),
          BytesPerSecond(device.memory_bandwidth.value * kMemory / neighbours)};
}

BlockTime roofline(const model::BlockCost& cost, const Rates& rates) {
  double all = 0, weights = 0;
  for (const model::Operator& one : cost.backward_operators) {
    all += one.flops.value;
    if (one.weight_half) weights += one.flops.value;
  }
  return {std::max(cost.forward / rates.compute, cost.forward_traffic / rates.memory),
          std::max(cost.backward / rates.compute, cost.backward_traffic / rates.memory), all > 0 ? weights / all : 0.5};
}

Seconds optimizer_roofline(const std::string& kind, std::int64_t parameters, model::Precision precision, const Rates& rates) {
  const double passes = kind == "adamw" ? kAdamPasses : kSgdPasses;
  const double bytes = 4 * passes + (precision == model::Precision::bf16 ? 2 : 0);
  return Seconds(static_cast<double>(parameters) * bytes / rates.memory.value);
}

}  // namespace tessera::profile
