// Fits the parameters of calibrations to measured steps.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "profile/calibration.hpp"
#include "rows.hpp"

namespace tessera::truth {

// What is fitted to what: an entry of fit.yaml.
struct Task {
  profile::Calibration start;
  std::vector<std::string> parameters;
  std::vector<const Row*> rows;
};
// Throws invalid_config for rows and parameters that do not exist.
std::vector<Task> read_tasks(const std::filesystem::path& path, const std::vector<Row>& rows);

double predicted(const Row& row, const profile::Calibration& calibration);

// Factors on the parameters that make the logarithms of predicted over measured smallest, by Levenberg's and Marquardt's method.
// Each error counts less the larger it is (a smooth absolute value), and each parameter is held near where it starts: a factor of
// e^0.3 away costs as much as an error of 5 %. So a parameter that the rows do not tell stays what physics says.
using Predict = std::function<double(const Row&, const std::vector<double>& factors)>;
std::vector<double> fit(const std::vector<const Row*>& rows, std::size_t parameters, const Predict& predict);

profile::Calibration fitted(const Task& task);
// The same with the given factors on the given parameters.
profile::Calibration scaled(const profile::Calibration& start, const std::vector<std::string>& parameters,
                            const std::vector<double>& factors);

}  // namespace tessera::truth
