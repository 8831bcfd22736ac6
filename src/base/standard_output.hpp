// What a program has printed, at its end.
#pragma once

namespace tessera {

// Hands on what std::cout and stdio still hold for the standard output. Throws io when not all that this process has printed since its
// start reached the standard output, because the disk is full, for example. A reader at the other end of a pipe that has gone away wanted
// no more: that is no error.
void flush_standard_output();

}  // namespace tessera
