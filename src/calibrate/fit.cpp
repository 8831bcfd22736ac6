#include "calibrate/fit.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"

namespace tessera::calibrate {
namespace {

constexpr double kErrorScale = 0.05;
constexpr double kPrior = 0.3;
constexpr double kWidePrior = 1.5;
constexpr int kSteps = 40;

// Like |x| far from 0 and like x^2 / 2 near it, when squared and halved.
double softened(double x) { return std::copysign(std::sqrt(2 * (std::sqrt(1 + x * x) - 1)), x); }

using Vector = std::vector<double>;
using Matrix = std::vector<Vector>;

// What rings wait differs widely between stacks.
double prior_of(const std::string& parameter) { return parameter == "rank_latency" ? kWidePrior : kPrior; }

double square_sum(const Vector& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

// Solves a x = b for a symmetric positive definite matrix, by Cholesky's method.
Vector solve(Matrix a, Vector b) {
  const std::size_t n = b.size();
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = a[i][j];
      for (std::size_t k = 0; k < j; ++k) sum -= a[i][k] * a[j][k];
      a[i][j] = i == j ? std::sqrt(sum) : sum / a[j][j];
    }
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t k = 0; k < i; ++k) b[i] -= a[i][k] * b[k];
    b[i] /= a[i][i];
  }
  for (std::size_t i = n; i-- > 0;) {
    for (std::size_t k = i + 1; k < n; ++k) b[i] -= a[k][i] * b[k];
    b[i] /= a[i][i];
  }
  return b;
}

}  // namespace

std::vector<double> fit(const std::vector<const Row*>& rows, const std::vector<std::string>& names, const Predict& predict) {
  const std::size_t parameters = names.size();
  const auto residuals = [&](const Vector& logarithms) {
    Vector factors;
    for (const double x : logarithms) factors.push_back(std::exp(x));
    Vector out;
    for (const Row* row : rows) out.push_back(softened(std::log(predict(*row, factors) / row->measured) / kErrorScale));
    for (std::size_t i = 0; i < logarithms.size(); ++i) out.push_back(logarithms[i] / prior_of(names[i]));
    return out;
  };
  Vector x(parameters, 0.0);
  Vector at = residuals(x);
  double damping = 1e-3;
  for (int step = 0; step < kSteps; ++step) {
    constexpr double kDifference = 1e-4;
    Matrix slopes;
    for (std::size_t p = 0; p < parameters; ++p) {
      Vector moved = x;
      moved[p] += kDifference;
      Vector column = residuals(moved);
      for (std::size_t i = 0; i < column.size(); ++i) column[i] = (column[i] - at[i]) / kDifference;
      slopes.push_back(std::move(column));
    }
    Matrix normal(parameters, Vector(parameters));
    Vector right(parameters);
    for (std::size_t p = 0; p < parameters; ++p) {
      for (std::size_t q = 0; q < parameters; ++q)
        for (std::size_t i = 0; i < at.size(); ++i) normal[p][q] += slopes[p][i] * slopes[q][i];
      for (std::size_t i = 0; i < at.size(); ++i) right[p] -= slopes[p][i] * at[i];
      normal[p][p] *= 1 + damping;
    }
    const Vector move = solve(normal, right);
    Vector next = x;
    for (std::size_t p = 0; p < parameters; ++p) next[p] += std::clamp(move[p], -0.5, 0.5);
    Vector there = residuals(next);
    const double before = square_sum(at);
    const double after = square_sum(there);
    if (after < before) {
      x = std::move(next);
      at = std::move(there);
      damping *= 0.3;
      if (before - after < 1e-9 * before) break;
    } else {
      damping *= 10;
    }
  }
  for (double& value : x) value = std::exp(value);
  return x;
}

profile::Calibration scaled(const profile::Calibration& start, const std::vector<std::string>& parameters,
                            const std::vector<double>& factors) {
  profile::Calibration out = start;
  for (std::size_t i = 0; i < parameters.size(); ++i) *profile::parameter(out, parameters[i]) *= factors[i];
  return out;
}

double misfit(const profile::Calibration& start, const profile::Calibration& calibration, const std::vector<std::string>& parameters,
              const std::vector<const Row*>& rows) {
  Vector out;
  for (const Row* row : rows) out.push_back(softened(std::log(predicted(*row, calibration) / row->measured) / kErrorScale));
  profile::Calibration from = start;
  profile::Calibration to = calibration;
  for (const std::string& name : parameters)
    out.push_back(std::log(*profile::parameter(to, name) / *profile::parameter(from, name)) / prior_of(name));
  return square_sum(out);
}

profile::Calibration fitted(const profile::Calibration& start, const std::vector<std::string>& parameters,
                            const std::vector<const Row*>& rows) {
  const std::vector<double> factors = fit(rows, parameters, [&](const Row& row, const std::vector<double>& values) {
    return predicted(row, scaled(start, parameters, values));
  });
  profile::Calibration out = scaled(start, parameters, factors);
  out.fitted_on.clear();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const Row& row = *rows[i];
    if (i == 0 || rows[i - 1]->source != row.source) {
      out.fitted_on.push_back(text(row.source, ": ", row.number));
    } else {
      out.fitted_on.back() += text(", ", row.number);
    }
  }
  return out;
}

}  // namespace tessera::calibrate
