#include "nn/memory.hpp"

#include <ATen/Context.h>
#include <c10/core/Allocator.h>

#include "base/error.hpp"

// Read by jemalloc when the process starts. Freed memory stays with the process instead of going back to the kernel and being zeroed again
// at each step, and lies in huge pages where the kernel leaves them to programs: a step walks through hundreds of megabytes, and looking up
// pages of 4 KiB takes up to a third of it on a virtual machine.
extern "C" __attribute__((visibility("default"))) const char* malloc_conf;
const char* malloc_conf = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1";

namespace tessera::nn {

void configure_memory() { at::globalContext().setFlushDenormal(true); }

void release(const at::Tensor& tensor) {
  ensure(tensor.storage_offset() == 0, "what is released has memory of its own");
  c10::StorageImpl& memory = *tensor.storage().unsafeGetStorageImpl();
  memory.set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  memory.set_nbytes(0);
}

bool hold(const at::Tensor& tensor) {
  c10::StorageImpl& memory = *tensor.storage().unsafeGetStorageImpl();
  if (memory.nbytes() == tensor.nbytes()) return false;
  memory.set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(tensor.nbytes()));
  memory.set_nbytes(tensor.nbytes());
  return true;
}

}  // namespace tessera::nn
