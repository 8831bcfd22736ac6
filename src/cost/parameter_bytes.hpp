// Internal to cost: bytes of a parameter on accelerators.
#pragma once

namespace tessera::cost {

// Weights in 16 bits, as computing reads them and as they go over links; gradients, master weights and two moments in 32.
constexpr double kWeight = 2;
constexpr double kGradient = 4;
constexpr double kState = 12;

}  // namespace tessera::cost
