// The mean of two profiles that were measured at different times on the same hosts.
#pragma once

#include "profile/profile.hpp"

namespace tessera::profile {

// Means of what both profiles hold: times, their bounds, rates, and weight shares. A micro-batch or a message size that only one of the two
// had the time to measure is left out, because it would stand beside means of other moments. Slow-downs and hosts' speeds that one of the
// two does not know are those of the other; the baseline of a process is the larger.
Profile mean_of(const Profile& a, const Profile& b);

}  // namespace tessera::profile
