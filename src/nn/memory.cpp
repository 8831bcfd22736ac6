#include "nn/memory.hpp"

#include <ATen/Context.h>
#include <malloc.h>

namespace tessera::nn {

void configure_memory() {
  constexpr int kKeep = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kKeep);
  mallopt(M_TRIM_THRESHOLD, kKeep);
  mallopt(M_TOP_PAD, 64 << 20);
  at::globalContext().setFlushDenormal(true);
}

}  // namespace tessera::nn
