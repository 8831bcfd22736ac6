#include "base/plain_name.hpp"

#include <algorithm>

namespace tessera {
namespace {

constexpr std::size_t kLongest = 200;

// Not std::isalnum, whose answer depends on the locale.
bool is_plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
}

bool may_begin(char c) { return is_plain(c) && c != '.' && c != '-'; }

}  // namespace

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongest && may_begin(name.front()) && std::all_of(name.begin(), name.end(), is_plain);
}

std::string plain_name_of(std::string_view words) {
  std::string out;
  bool gap = false;
  for (const char c : words) {
    if (!is_plain(c) || (out.empty() && !may_begin(c))) {
      gap = true;
      continue;
    }
    if (out.size() + 2 > kLongest) break;
    if (gap && !out.empty()) out.push_back('-');
    gap = false;
    out.push_back(c);
  }
  return out.empty() ? "run" : out;
}

}  // namespace tessera
