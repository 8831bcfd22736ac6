// Initial values of parameters, by model::Initializer::kind.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "model/model.hpp"

namespace tessera::nn {

// The initial value of one element. It depends on these alone, so that every plan starts from the same weights: `stream` differs by seed
// and parameter, `index` is the element's place in the whole parameter.
using InitialValue = std::function<float(const model::ParameterSpec& parameter, std::uint64_t stream, std::uint64_t index)>;

// Registration happens before training starts; not thread-safe. Throws invalid_config where there is one of this name.
void register_initializer(const std::string& kind, InitialValue value);
// Throws not_found, which names the known ones.
const InitialValue& initializer(const std::string& kind);

}  // namespace tessera::nn
