#include "base/standard_output.hpp"

#include <cerrno>
#include <cstdio>
#include <iostream>

#include "base/error.hpp"

namespace tessera {

void flush_standard_output() {
  errno = 0;
  std::cout.flush();
  std::fflush(stdout);
  if (std::ferror(stdout) == 0) return;
  // The reason of an earlier failure is not known any more.
  if (errno == 0) throw Error(ErrorCode::io, "cannot write to the standard output: part of what was printed is lost");
  throw_errno("write to", "the standard output", errno);
}

}  // namespace tessera
