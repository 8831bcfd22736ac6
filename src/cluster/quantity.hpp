// Internal: quantities as people write them in cluster files.
#pragma once

#include <string>

#include "base/config.hpp"
#include "base/units.hpp"

namespace tessera::cluster {

// "450 GB/s", "100 Gbit/s" or a plain number of bytes per second.
BytesPerSecond bandwidth_from(const ConfigNode& node);
// "989 TFLOP/s" or a plain number.
FlopsPerSecond rate_from(const ConfigNode& node);
// "5 us", "0.2 ms" or a plain number of seconds.
Seconds seconds_from(const ConfigNode& node);

// The shortest of these forms that reads back as exactly the same value.
std::string written(BytesPerSecond bandwidth);
std::string written(FlopsPerSecond rate);
std::string written(Seconds seconds);
std::string written(Bytes bytes);

}  // namespace tessera::cluster
