#include "nn/memory.hpp"

#include <ATen/Context.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/error.hpp"

// Read by jemalloc when the process starts. Freed memory stays with the process instead of going back to the kernel and being zeroed again
// at each step, and lies in huge pages where the kernel leaves them to programs: a step walks through hundreds of megabytes, and looking up
// pages of 4 KiB takes up to a third of it on a virtual machine.
extern "C" __attribute__((visibility("default"))) const char* malloc_conf;
const char* malloc_conf = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1";

namespace tessera::nn {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void configure_memory() { at::globalContext().setFlushDenormal(true); }

at::Tensor releasable_zeros(std::int64_t count, at::ScalarType type, at::Device device) {
  if (!device.is_cpu()) return at::zeros({count}, at::TensorOptions(device).dtype(type));
  const std::size_t bytes = std::max<std::size_t>(1, static_cast<std::size_t>(count) * c10::elementSize(type));
  // Where there are huge pages, memory that comes and goes costs a fault for each of them.
  const std::size_t mapped = bytes + kHugePage;
  void* const begin = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (begin == MAP_FAILED) throw_errno("map", text(bytes, " bytes"), errno);
  const auto address = reinterpret_cast<std::uintptr_t>(begin);
  auto* const memory = static_cast<std::byte*>(begin) + ((kHugePage - address % kHugePage) % kHugePage);
  ::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return at::from_blob(
      memory, {count}, [begin, mapped](void*) { ::munmap(begin, mapped); }, at::TensorOptions().dtype(type));
}

void release(const at::Tensor& tensor) {
  if (tensor.is_cpu()) {
    if (::madvise(tensor.data_ptr(), tensor.nbytes(), MADV_DONTNEED) != 0) throw_errno("give back", text(tensor.nbytes(), " bytes"), errno);
    return;
  }
  ensure(tensor.storage_offset() == 0, "what is released has memory of its own");
  c10::StorageImpl& memory = *tensor.storage().unsafeGetStorageImpl();
  memory.set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  memory.set_nbytes(0);
}

void hold(const at::Tensor& tensor) {
  c10::StorageImpl& memory = *tensor.storage().unsafeGetStorageImpl();
  if (tensor.is_cpu() || memory.nbytes() == tensor.nbytes()) return;
  memory.set_data_ptr_noswap(c10::GetAllocator(tensor.device().type())->allocate(tensor.nbytes()));
  memory.set_nbytes(tensor.nbytes());
  tensor.zero_();
}

}  // namespace tessera::nn
