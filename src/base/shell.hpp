// Commands that are shown for people to type.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// One word of a command as a POSIX shell reads it: "my run" becomes "'my run'", and a word that needs no quotes stays as it is.
std::string shell_quoted(std::string_view word);

}  // namespace tessera
