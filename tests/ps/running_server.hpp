#pragma once

#include <future>
#include <string>
#include <thread>

#include "base/free_port.hpp"
#include "ps/server.hpp"

namespace tessera::ps {

// A server on a thread of its own.
class RunningServer {
 public:
  explicit RunningServer(const ServerOptions& options = {}) : place(free_loopback_place()) {
    std::promise<void> listening;
    thread_ = std::jthread([this, &listening, options](const std::stop_token& stop) {
      Server server(place, "", options);
      listening.set_value();
      server.serve(stop);
    });
    listening.get_future().wait();
  }
  const std::string place;

 private:
  std::jthread thread_;
};

}  // namespace tessera::ps
