// Internal. A row's first values.
#pragma once

#include <span>

#include "ps/ps.hpp"

namespace tessera::ps {

void start_values(const InitializerSpec& initializer, Key key, std::span<float> values);

}  // namespace tessera::ps
