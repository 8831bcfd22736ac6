// How the threads of a rank wait for each other, said to the program that computes before it starts.
#pragma once

#include <cstdlib>

namespace tessera::control {

// For the program that this process is about to become. libgomp's threads spin for some 15 ms before they sleep, and keep what they wait
// for from running where anything else wants their cores: parameter servers, the thread that reads, another user's work. After 1000 turns
// (some 50 us, about what waking up takes) a step beside other work takes half the time or less, and alone the same. What the user says in
// the environment holds.
inline void spin_briefly() {
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) ::setenv("GOMP_SPINCOUNT", "1000", 0);
}

}  // namespace tessera::control
