#include <algorithm>
#include <cmath>

#include "interop/galvatron/inputs.hpp"

namespace tessera::interop::galvatron {
namespace {

// Gaussian elimination with partial pivoting; `rows` are [coefficients | right-hand side].
std::vector<double> solve(std::vector<std::vector<double>> rows) {
  const int size = static_cast<int>(rows.size());
  for (int column = 0; column < size; ++column) {
    int pivot = column;
    for (int r = column + 1; r < size; ++r)
      if (std::abs(rows[r][column]) > std::abs(rows[pivot][column])) pivot = r;
    std::swap(rows[column], rows[pivot]);
    ensure(rows[column][column] != 0, "a polynomial through too few points");
    for (int r = column + 1; r < size; ++r) {
      const double factor = rows[r][column] / rows[column][column];
      for (int c = column; c <= size; ++c) rows[r][c] -= factor * rows[column][c];
    }
  }
  std::vector<double> solution(size);
  for (int r = size - 1; r >= 0; --r) {
    double rest = rows[r][size];
    for (int c = r + 1; c < size; ++c) rest -= rows[r][c] * solution[c];
    solution[r] = rest / rows[r][r];
  }
  return solution;
}

}  // namespace

std::vector<double> fit_polynomial(const Samples& samples, int degree) {
  double scale = 0;
  for (const auto& [x, y] : samples) scale = std::max(scale, std::abs(x));
  if (scale == 0) scale = 1;
  // The normal equations in x / scale, whose powers stay near one.
  std::vector<std::vector<double>> rows(degree + 1, std::vector<double>(degree + 2, 0.0));
  for (const auto& [x, y] : samples)
    for (int r = 0; r <= degree; ++r) {
      for (int c = 0; c <= degree; ++c) rows[r][c] += std::pow(x / scale, r + c);
      rows[r][degree + 1] += std::pow(x / scale, r) * y;
    }
  std::vector<double> coefficients = solve(std::move(rows));
  for (int power = 1; power <= degree; ++power) coefficients[power] /= std::pow(scale, power);
  return coefficients;
}

Line fit_line(const Samples& samples) {
  const std::vector<double> coefficients = fit_polynomial(samples, 1);
  return {coefficients[1], coefficients[0]};
}

}  // namespace tessera::interop::galvatron
