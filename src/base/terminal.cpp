#include "base/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace tessera {

namespace {

const char* shown_elsewhere(int descriptor) { return descriptor == STDERR_FILENO ? std::getenv(kShownElsewhere) : nullptr; }

}  // namespace

bool is_live_terminal(int descriptor) {
  if (shown_elsewhere(descriptor) != nullptr) return true;
  const char* terminal = std::getenv("TERM");
  return ::isatty(descriptor) != 0 && terminal != nullptr && std::string_view(terminal) != "dumb";
}

bool color_wanted(int descriptor) {
  if (const char* shown = shown_elsewhere(descriptor)) return std::string_view(shown).ends_with(" color");
  const char* refused = std::getenv("NO_COLOR");
  return is_live_terminal(descriptor) && (refused == nullptr || *refused == '\0');
}

int columns_of(int descriptor) {
  if (const char* shown = shown_elsewhere(descriptor)) return std::max(0, std::atoi(shown));
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  const char* columns = std::getenv("COLUMNS");
  return columns != nullptr ? std::max(0, std::atoi(columns)) : 0;
}

}  // namespace tessera
