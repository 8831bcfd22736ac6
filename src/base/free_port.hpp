// Where a listener of one's own can stand.
#pragma once

#include <string>

namespace tessera {

// A TCP port of this host at which nobody listens. It lies outside the range from which the kernel hands out ports by itself, so that
// nothing that opens a socket meanwhile is given it. Throws io when there is none.
int free_port();
// "127.0.0.1:PORT" with such a port.
std::string free_loopback_place();

}  // namespace tessera
