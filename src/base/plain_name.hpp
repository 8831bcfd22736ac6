// Names that stand for one entry of a folder: a run in runs/, a file that a manifest or an index lists.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

// What an error says it expected.
inline constexpr const char* kPlainName = "a-z, A-Z, 0-9, '-', '_' and '.', at most 200, with a letter, a digit or '_' first";

// True for 1 to 200 of these characters. A plain name holds no '/', is never "." or "..", looks like no option to a command, and has
// room for ".tmp" and the like behind it.
bool is_plain_name(std::string_view name);

// The plain name nearest to `words`: "my run" becomes "my-run". "run" where nothing is left.
std::string plain_name_of(std::string_view words);

}  // namespace tessera
