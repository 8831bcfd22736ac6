#include "base/standard_output.hpp"

#include <poll.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "base/error.hpp"

namespace tessera {

namespace {

// Whether the standard output is a pipe or a socket without a reader.
bool reader_left() {
  pollfd output{STDOUT_FILENO, POLLOUT, 0};
  return ::poll(&output, 1, 0) > 0 && (output.revents & POLLERR) != 0;
}

}  // namespace

void flush_standard_output() {
  errno = 0;
  std::cout.flush();
  std::fflush(stdout);
  if (std::ferror(stdout) == 0 || reader_left()) return;
  // The reason of an earlier failure is not known any more.
  const std::string reason = errno == 0 ? "part of what was printed is lost" : std::strerror(errno);
  throw Error(ErrorCode::io, "cannot write to the standard output: " + reason, {}, {},
              "what was printed is not all there, but the command has run to its end");
}

}  // namespace tessera
