// How a worker answers the signals that ask it to stop: SIGTERM, and SIGINT and SIGHUP unless whoever started it ignores them.
#pragma once

#include <atomic>

#include "base/error.hpp"

namespace tessera::control {

// From now on such a signal ends the process at once, wherever it waits: `error` goes where report_error sends it, and its exit code is
// the process's.
void end_when_asked(const Error& error);

// From now on such a signal only sets what is returned; a second SIGINT (Ctrl-C) ends the process by the signal. A launcher may pass
// SIGTERM on to a worker that has it already, so further ones change nothing.
const std::atomic<bool>& stop_when_asked();

}  // namespace tessera::control
