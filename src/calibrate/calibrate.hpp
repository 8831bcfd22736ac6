// A stack's calibration from a few steps that were measured under it.
#pragma once

#include <string>
#include <vector>

#include "calibrate/row.hpp"
#include "profile/calibration.hpp"

namespace tessera::calibrate {

// What every fit starts from, whatever the stack: the shares of the peak that tuned software reaches, and no exchange beside computing.
// `accelerator`: a family of devices (profile::family_of).
profile::Calibration start_of(const std::string& accelerator, profile::AttentionKernel attention);
// The parameters that these rows say something about: those of 8-bit products only when a row has 8-bit products, those of tensor
// parallelism only when a row has tp > 1, and so on.
std::vector<std::string> parameters_for(const std::vector<const Row*>& rows);
// The calibration that explains the rows best: with those parameters fitted under each of three assumptions on what the stack runs beside
// computing (everything, gradients, nothing), the one whose parameters stay near their start. It says what the rows reach
// (Calibration::measured). Throws invalid_config when there are no rows, or they are of several families of devices.
profile::Calibration calibrated(const std::string& name, profile::AttentionKernel attention, const std::vector<const Row*>& rows);

}  // namespace tessera::calibrate
