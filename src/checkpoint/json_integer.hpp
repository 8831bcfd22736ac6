// Internal: whole numbers of a JSON file. nlohmann's own conversion takes 1.5 for 1 and wraps what the type cannot hold.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tessera::checkpoint {

// Throws std::invalid_argument when `json` is no whole number, or none of this type; who reads the file names it.
template <typename Integer = std::int64_t, typename Json>
Integer integer_of(const Json& json) {
  if (json.is_number_unsigned()) {
    if (const auto value = json.template get<std::uint64_t>(); std::in_range<Integer>(value)) return static_cast<Integer>(value);
  } else if (json.is_number_integer()) {
    if (const auto value = json.template get<std::int64_t>(); std::in_range<Integer>(value)) return static_cast<Integer>(value);
  }
  // Other values may be nested too deep to be shown.
  throw std::invalid_argument((json.is_number() ? json.dump() : "a value of type " + std::string(json.type_name())) +
                              " in place of a whole number of up to " + std::to_string(8 * sizeof(Integer)) + " bits");
}

template <typename Json>
std::vector<std::int64_t> integers_of(const Json& json) {
  if (!json.is_array()) throw std::invalid_argument("a value of type " + std::string(json.type_name()) + " in place of a list");
  std::vector<std::int64_t> out;
  for (const Json& value : json) out.push_back(integer_of(value));
  return out;
}

}  // namespace tessera::checkpoint
