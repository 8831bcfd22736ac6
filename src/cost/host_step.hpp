// Internal to cost: an accelerator's optimizer step on the CPU of its host (Strategy::offload_optimizer).
#pragma once

namespace tessera::cost {

// Seconds of a step of so many parameters. The device's way to the host (PCIe 4 x16) carries the gradients out and the weights back, of so
// many bytes a parameter each. A core group's share of the host's memory reads and writes 28 bytes a parameter: the gradient, and the
// master weight and two moments both ways.
inline double host_step(double parameters, double gradient, double weight) {
  constexpr double kLink = 20e9;
  constexpr double kMemory = 25e9;
  constexpr double kTraffic = 28;
  return parameters * ((gradient + weight) / kLink + kTraffic / kMemory);
}

}  // namespace tessera::cost
