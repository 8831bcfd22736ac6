// The loop: takes an input of the corpus, changes it, and keeps the change when it went a new way.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "fuzz/targets.hpp"

namespace tessera::fuzz {

struct Limits {
  double seconds = 0;           // 0: no limit
  std::int64_t executions = 0;  // 0: no limit
  std::uint64_t seed = 1;
  // Told of each input before it is read, so that one that ends the process can be found.
  std::function<void(const std::string&)> before = {};
};

struct Report {
  std::int64_t executions = 0;
  std::int64_t read = 0;
  std::int64_t refused = 0;
  std::size_t edges = 0;
  std::size_t corpus = 0;
  double slowest = 0;                          // seconds of one input
  std::map<std::string, std::string> defects;  // what happened, digits aside -> the first input
};

// Begins with the seeds as they are; those must be read. Deterministic for a limit in executions.
Report fuzz(const Target& target, const Limits& limits);

}  // namespace tessera::fuzz
