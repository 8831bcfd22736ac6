// Process-wide settings that make tensor work fast on a CPU.
#pragma once

namespace tessera::nn {

// Called once, at the start of the process that trains, before its first tensor: freed memory stays with the process
// instead of going back to the kernel and being zeroed again at each step (glibc's default for blocks over 128 KiB), and
// denormal numbers count as zero in this thread and in those it starts.
void configure_memory();

}  // namespace tessera::nn
