// The devices of this host that libtorch computes on, by the vendors that cluster files name (cluster/cluster.hpp).
#pragma once

#include <c10/core/Device.h>
#include <string>

#include "base/units.hpp"

namespace tessera::nn {

// How many there are. 0 where this libtorch knows none of the kind. The first call for "nvidia" loads libtorch's library for CUDA; what
// asks libtorch for CUDA before that, at::manual_seed too, leaves the process without it.
int device_count(const std::string& vendor);
// The one of that index: the CPU for "cpu", whatever the index. Throws not_found, which says what libtorch has, where it is not there.
at::Device device_of(const std::string& vendor, int index);
// The most that tensors have taken of its memory since the process began; 0 for a CPU, and where its allocator does not count.
Bytes peak_memory(at::Device device);

}  // namespace tessera::nn
