// Connections that are lost at random moments.
#pragma once

#include <dirent.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <thread>
#include <vector>

#include "base/random.hpp"

namespace tessera::ps {

// TCP's connections of this process and those past TCP; not what it was started with.
inline std::vector<int> connections() {
  std::vector<int> found;
  DIR* const folder = opendir("/proc/self/fd");
  while (const dirent* const entry = readdir(folder)) {
    const int descriptor = std::atoi(entry->d_name);
    if (descriptor <= STDERR_FILENO) continue;
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    int listening = 0;
    socklen_t size = sizeof listening;
    if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
        (address.ss_family == AF_INET || address.ss_family == AF_UNIX) &&
        getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) == 0 && listening == 0)
      found.push_back(descriptor);
  }
  closedir(folder);
  return found;
}

// As long as it lives, shuts one of them down every half to twenty milliseconds.
class ConnectionBreaker {
 public:
  explicit ConnectionBreaker(std::uint64_t seed)
      : thread_([seed](const std::stop_token& stop) {
          Random random(seed);
          while (!stop.stop_requested()) {
            std::this_thread::sleep_for(std::chrono::microseconds(500 + random.below(20'000)));
            const std::vector<int> all = connections();
            if (!all.empty()) shutdown(all[random.below(all.size())], SHUT_RDWR);
          }
        }) {}

 private:
  std::jthread thread_;
};

}  // namespace tessera::ps
