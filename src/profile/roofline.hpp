// Internal: times by the roofline (Williams, Waterman, Patterson 2009): the longer of computing and moving.
#pragma once

#include "profile/profile.hpp"

namespace tessera::profile {

// The rates that one rank reaches.
struct Rates {
  FlopsPerSecond compute;
  BytesPerSecond memory;
};

// CPU workers share their host: `neighbours` workers of `threads` threads never get more than its cores and its bandwidth.
Rates rates_of(const cluster::Device& device, model::Precision precision, int threads, int neighbours);

BlockTime roofline(const model::BlockCost& cost, const Rates& rates);
Seconds optimizer_roofline(const std::string& kind, std::int64_t parameters, model::Precision precision, const Rates& rates);

}  // namespace tessera::profile
