// Bytes as text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

// Two lower-case digits a byte.
std::string to_hex(std::string_view bytes);
// Unset for anything that to_hex does not write.
std::optional<std::string> from_hex(std::string_view hex);

}  // namespace tessera
