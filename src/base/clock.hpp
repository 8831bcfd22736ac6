// Time as an interface, so that code with deadlines can be tested in simulated time.
#pragma once

#include <chrono>

#include "base/units.hpp"

namespace tessera {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic seconds since an arbitrary start. Thread-safe.
  virtual Seconds now() const = 0;
  // Blocks the calling thread.
  virtual void sleep(Seconds duration) = 0;
};

// The steady clock of this host; stateless.
Clock& real_clock();

}  // namespace tessera
