// Fits the parameters of calibrations to measured steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "calibrate/row.hpp"
#include "profile/calibration.hpp"

namespace tessera::calibrate {

// Seconds of a row's step with these factors on the parameters that are fitted, in their order.
using Predict = std::function<double(const Row&, const std::vector<double>& factors)>;
// The factors on `parameters` for which log(predicted / measured) of the rows is smallest, by the Levenberg-Marquardt method. The loss is a
// smooth absolute value, so that outliers count less. A prior keeps each parameter near its start: a factor of e^0.3 costs as much as an
// error of 5 % (of e^1.5 for rank_latency and overlap_slowdown, which differ widely between stacks). So a parameter that the rows say
// nothing about keeps its physical value.
std::vector<double> fit(const std::vector<const Row*>& rows, const std::vector<std::string>& parameters, const Predict& predict);

// The calibration with the given factors on the given parameters.
profile::Calibration scaled(const profile::Calibration& start, const std::vector<std::string>& parameters,
                            const std::vector<double>& factors);
// The calibration with factors fitted to the rows; its `fitted_on` names them.
profile::Calibration fitted(const profile::Calibration& start, const std::vector<std::string>& parameters,
                            const std::vector<const Row*>& rows);

// What such a fit makes smallest: the rows' errors and how far the parameters have moved.
double misfit(const profile::Calibration& start, const profile::Calibration& calibration, const std::vector<std::string>& parameters,
              const std::vector<const Row*>& rows);

}  // namespace tessera::calibrate
