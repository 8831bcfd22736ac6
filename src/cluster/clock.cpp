#include <algorithm>
#include <chrono>

#include "cluster/host.hpp"

namespace tessera::cluster {

namespace {

double measure() {
#if defined(__x86_64__)
  // Additions that wait for each other take one cycle each. The fastest of several short runs is the one that nothing
  // interrupted.
  constexpr int adds = 1'000'000;
  double best = 0;
  for (int run = 0; run < 5; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    unsigned long sum = 0;
    for (int i = 0; i < adds / 10; ++i)
      asm volatile(
          "add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0\n add $1, %0"
          : "+r"(sum));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best = std::max(best, adds / seconds.count());
  }
  return best;
#else
  return 0;
#endif
}

}  // namespace

double measured_hertz() {
  // Once: what one process says about its host must agree with itself.
  static const double hertz = measure();
  return hertz;
}

}  // namespace tessera::cluster
