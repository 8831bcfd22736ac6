#include "nn/initializers.hpp"

#include <cmath>
#include <map>
#include <numbers>

#include "base/error.hpp"
#include "base/hash.hpp"
#include "base/random.hpp"

namespace tessera::nn {
namespace {

// Box and Muller 1958.
float normal(const model::ParameterSpec& parameter, std::uint64_t stream, std::uint64_t index) {
  Random random(seed_of(stream, index));
  const double radius = std::sqrt(-2.0 * std::log(1.0 - random.uniform()));
  const auto value = static_cast<float>(radius * std::cos(2.0 * std::numbers::pi * random.uniform()));
  return static_cast<float>(parameter.init.scale) * value;
}

float uniform(const model::ParameterSpec& parameter, std::uint64_t stream, std::uint64_t index) {
  return static_cast<float>(parameter.init.scale * (2 * Random(seed_of(stream, index)).uniform() - 1));
}

std::map<std::string, InitialValue>& initializers() {
  static std::map<std::string, InitialValue> known = {
      {"normal", normal},
      {"uniform", uniform},
      {"ones", [](const model::ParameterSpec&, std::uint64_t, std::uint64_t) { return 1.0f; }},
      {"zeros", [](const model::ParameterSpec&, std::uint64_t, std::uint64_t) { return 0.0f; }}};
  return known;
}

}  // namespace

void register_initializer(const std::string& kind, InitialValue value) {
  if (!initializers().emplace(kind, std::move(value)).second)
    throw Error(ErrorCode::invalid_config, text("there is an initializer \"", kind, "\" already"), {}, "a name of its own");
}

const InitialValue& initializer(const std::string& kind) {
  const auto found = initializers().find(kind);
  if (found != initializers().end()) return found->second;
  std::string known;
  for (const auto& [name, value] : initializers()) known += (known.empty() ? "" : ", ") + name;
  throw Error(ErrorCode::not_found, text("there is no initializer \"", kind, "\""), {}, "one of: " + known);
}

}  // namespace tessera::nn
