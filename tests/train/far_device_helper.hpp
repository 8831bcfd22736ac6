// A device whose memory the host cannot reach, so that what would read an accelerator's memory from the host faults here, too. Its
// addresses are none of the host's; its operators are libtorch's for CPUs, on copies.
#pragma once

#include <c10/core/Device.h>

namespace tessera::train {

at::Device far_device();

}  // namespace tessera::train
