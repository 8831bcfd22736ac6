// Internal: what read_inputs is made of.
#pragma once

#include <utility>
#include <vector>

#include "base/config.hpp"
#include "interop/galvatron/galvatron.hpp"

namespace tessera::interop::galvatron {

// From search_dist.yaml and the model's YAML. Throws as read_inputs does.
Settings read_settings(const std::filesystem::path& yaml, const std::vector<std::string>& overrides);

// The first of `candidates` that exists; throws not_found that lists them all. `what`: "the model's YAML".
std::filesystem::path first_existing(const std::string& what, const std::vector<std::filesystem::path>& candidates);

// Least squares of low degree, for profiles that are given as samples.
using Samples = std::vector<std::pair<double, double>>;  // x, y
// The coefficients (of 1, x, x^2, ...) of the polynomial with the least squared error. At least degree + 1 distinct x.
std::vector<double> fit_polynomial(const Samples& samples, int degree);

}  // namespace tessera::interop::galvatron
