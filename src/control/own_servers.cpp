#include "control/own_servers.hpp"

#include "base/clock.hpp"
#include "base/free_port.hpp"

namespace tessera::control {
namespace {

constexpr Seconds kStart(60);
constexpr const char* kServing = "serving at ";

}  // namespace

OwnServers::OwnServers(int threads)
    : process_({sibling_program("tessera-ps").string(), "serve", "--listen", free_loopback_place(), "--threads", text(threads)},
               Starter::Speaks::words) {
  const Seconds until = real_clock().now() + kStart;
  while (places_.empty()) {
    const bool ended = process_.status().has_value();
    process_.read([&](const std::string& line) {
      if (line.starts_with(kServing)) places_ = words_of(line.substr(std::string_view(kServing).size()));
    });
    if (places_.empty() && (ended || real_clock().now() > until))
      throw Error(ErrorCode::io, text("the parameter servers of the run did not start: ", process_.last_line()), {}, {},
                  "start them with `tessera ps serve`, and name them in parameter_servers.servers");
    real_clock().sleep(Seconds(0.01));
  }
}

OwnServers::~OwnServers() { process_.ask_to_end(); }

}  // namespace tessera::control
