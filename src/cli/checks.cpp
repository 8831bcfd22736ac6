#include "cli/checks.hpp"

#include <charconv>
#include <cmath>
#include <functional>
#include <optional>
#include <string>

#include "base/error.hpp"

namespace tessera::cli {
namespace {

template <typename Number>
std::optional<Number> read(const std::string& word) {
  Number value{};
  const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), value);
  return problem == std::errc() && end == word.data() + word.size() ? std::optional(value) : std::nullopt;
}

CLI::Validator accepting(const std::string& expected, std::function<bool(const std::string&)> accepts) {
  const auto check = [expected, accepts = std::move(accepts)](std::string& word) {
    return accepts(word) ? std::string() : text("found '", word, "', expected ", expected);
  };
  return CLI::Validator(check, "");
}

// ", at least 1", " from 0 to 1"
template <typename Number>
std::string range_text(Number least, Number most) {
  return most == std::numeric_limits<Number>::max() ? text(", at least ", least) : text(" from ", least, " to ", most);
}

}  // namespace

CLI::Validator whole_number(std::int64_t least, std::int64_t most) {
  return accepting("a whole number" + range_text(least, most), [=](const std::string& word) {
    const auto value = read<std::int64_t>(word);
    return value && *value >= least && *value <= most;
  });
}

CLI::Validator number(double least, double most) {
  return accepting("a number" + range_text(least, most), [=](const std::string& word) {
    const auto value = read<double>(word);
    return value && *value >= least && *value <= most;
  });
}

CLI::Validator number_above_zero() {
  return accepting("a number above 0", [](const std::string& word) {
    const auto value = read<double>(word);
    return value && std::isfinite(*value) && *value > 0;
  });
}

}  // namespace tessera::cli
