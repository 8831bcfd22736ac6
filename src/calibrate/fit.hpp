// Fits the parameters of calibrations to measured steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "calibrate/row.hpp"
#include "profile/calibration.hpp"

namespace tessera::calibrate {

// Factors on the parameters that make the logarithms of predicted over measured smallest, by Levenberg's and Marquardt's method.
// Each error counts less the larger it is (a smooth absolute value), and each parameter is held near where it starts: a factor of
// e^0.3 away (e^1.5 for what rings wait, which differs widely between stacks) costs as much as an error of 5 %. So a parameter that the
// rows do not tell stays what physics says.
using Predict = std::function<double(const Row&, const std::vector<double>& factors)>;
std::vector<double> fit(const std::vector<const Row*>& rows, const std::vector<std::string>& parameters, const Predict& predict);

// The calibration with the given factors on the given parameters.
profile::Calibration scaled(const profile::Calibration& start, const std::vector<std::string>& parameters,
                            const std::vector<double>& factors);
// The same with factors fitted to the rows, which `fitted_on` then names.
profile::Calibration fitted(const profile::Calibration& start, const std::vector<std::string>& parameters,
                            const std::vector<const Row*>& rows);

// What such a fit makes smallest: the rows' errors and how far the parameters have moved.
double misfit(const profile::Calibration& start, const profile::Calibration& calibration, const std::vector<std::string>& parameters,
              const std::vector<const Row*>& rows);

}  // namespace tessera::calibrate
