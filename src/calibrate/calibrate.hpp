// A stack's calibration from a few steps that were measured under it.
#pragma once

#include <string>
#include <vector>

#include "calibrate/row.hpp"
#include "profile/calibration.hpp"

namespace tessera::calibrate {

// What every fit starts from, whatever the stack: shares of the peak that tuned software reaches, and no exchange beside computing.
// `accelerator`: a family of devices (profile::family_of).
profile::Calibration start_of(const std::string& accelerator, profile::AttentionKernel attention);
// The parameters that these rows can tell: of 8-bit products only where there are such rows, of tensor parallelism likewise, and so on.
std::vector<std::string> parameters_for(const std::vector<const Row*>& rows);
// Fits them under each of three assumptions on what the stack runs beside computing (everything, gradients, nothing), and takes the one
// that explains the rows best with parameters near their start. Throws invalid_config when the rows are of several families of devices, or
// none.
profile::Calibration calibrated(const std::string& name, profile::AttentionKernel attention, const std::vector<const Row*>& rows);

}  // namespace tessera::calibrate
