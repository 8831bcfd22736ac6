// Internal: least squares of low degree, for profiles that are given as samples.
#pragma once

#include <utility>
#include <vector>

#include "interop/galvatron/galvatron.hpp"

namespace tessera::interop::galvatron {

using Samples = std::vector<std::pair<double, double>>;  // x, y

// The coefficients (of 1, x, x^2, ...) of the polynomial with the least squared error. At least degree + 1 distinct x.
std::vector<double> fit_polynomial(const Samples& samples, int degree);
Line fit_line(const Samples& samples);

}  // namespace tessera::interop::galvatron
