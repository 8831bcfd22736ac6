// internal: fields of a line.
#pragma once

#include <charconv>
#include <string_view>

namespace tessera::data {

// Takes the field up to the next separator off the line.
inline std::string_view take_field(std::string_view& line, char separator) {
  const std::size_t end = line.find(separator);
  const std::string_view field = line.substr(0, end);
  line = end == std::string_view::npos ? std::string_view() : line.substr(end + 1);
  return field;
}

// Whether all of the field is this number. `how`: the base of a whole number, or the format of a real one.
template <typename Number, typename... How>
bool is_number(std::string_view field, Number& number, How... how) {
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), number, how...);
  return error == std::errc() && end == field.data() + field.size();
}

}  // namespace tessera::data
