// Parameter servers of a run's own.
#pragma once

#include <string>
#include <vector>

#include "control/starter.hpp"

namespace tessera::control {

// A tessera-ps on the loopback, with as many servers as `threads`, that ends with this object and dies with this process. Not thread-safe.
class OwnServers {
 public:
  // Returns when they listen. They, and the workers that are started later, find their secret in this process's environment
  // (servers_secret_from_environment). Throws io with what tessera-ps said where it ended instead, not_found where there is none.
  explicit OwnServers(int threads);
  ~OwnServers();
  OwnServers(const OwnServers&) = delete;
  OwnServers& operator=(const OwnServers&) = delete;

  // HOST:PORT of each.
  const std::vector<std::string>& places() const { return places_; }

 private:
  Starter process_;
  std::vector<std::string> places_;
};

}  // namespace tessera::control
