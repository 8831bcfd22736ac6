// What servers tell Prometheus.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "ps/client.hpp"

namespace tessera::ps {

struct ObservedServer {
  std::string place;
  std::optional<ServerStatus> status = {};  // none: it does not answer, as one that stands by
};

// In the text format, version 0.0.4, of https://prometheus.io/docs/instrumenting/exposition_formats/. Counters count since the server
// began.
std::string metrics_text(std::span<const ObservedServer> servers);

}  // namespace tessera::ps
