#include "nn/memory.hpp"

#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <sys/mman.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/error.hpp"

// Read by jemalloc when the process starts. Freed memory stays with the process instead of going back to the kernel and being zeroed again
// at each step, and lies in huge pages where the kernel leaves them to programs: a step walks through hundreds of megabytes, and looking up
// pages of 4 KiB takes up to a third of it on a virtual machine. Any request may be served from a freed extent, however large: with
// jemalloc's limit of 64 times the request, what a step frees grows together into extents that small requests may not touch, and the
// process takes new memory for them step after step.
extern "C" __attribute__((visibility("default"))) const char* malloc_conf;
const char* malloc_conf = "thp:always,dirty_decay_ms:-1,muzzy_decay_ms:-1,lg_extent_max_active_fit:64";

namespace tessera::nn {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

// A CPU's memory for what release() and hold() are about. So much of what is released as the largest tensor takes is kept for the next, as
// the kernel would zero it anew, large ones before small ones; the rest goes to the kernel, as exchanges that are late hold more at once
// than a plan counts. It lies apart from the heap, where it would stand between activations that are freed before it. Thread-safe.
class Pool {
 public:
  static Pool& instance() {
    static Pool& pool = *new Pool;  // tensors may outlive what is static
    return pool;
  }

  c10::DataPtr take(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    largest_ = std::max(largest_, bytes);
    const auto found = kept_.lower_bound(bytes);
    std::unique_ptr<Block> block;
    if (found == kept_.end() || found->first > 2 * bytes) {
      block = std::make_unique<Block>(bytes);
    } else {
      block = std::move(found->second);
      kept_.erase(found);
      kept_bytes_ -= block->bytes;
    }
    Block* const taken = block.release();
    return {taken->memory, taken, [](void* context) { instance().put(std::unique_ptr<Block>(static_cast<Block*>(context))); }, at::kCPU};
  }

 private:
  // Begins at a huge page, and takes memory where it has been written to.
  struct Block {
    explicit Block(std::size_t size) : bytes(size) {
      begin = ::mmap(nullptr, mapped(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (begin == MAP_FAILED) throw_errno("map", text(bytes, " bytes"), errno);
      const auto address = reinterpret_cast<std::uintptr_t>(begin);
      memory = static_cast<std::byte*>(begin) + ((kHugePage - address % kHugePage) % kHugePage);
      ::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    }
    ~Block() { ::munmap(begin, mapped()); }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;
    std::size_t mapped() const { return bytes + kHugePage; }

    std::size_t bytes;
    void* begin;
    void* memory;
  };

  void put(std::unique_ptr<Block> block) {
    const std::lock_guard lock(mutex_);
    kept_bytes_ += block->bytes;
    kept_.emplace(block->bytes, std::move(block));
    for (; kept_bytes_ > largest_; kept_.erase(kept_.begin())) kept_bytes_ -= kept_.begin()->first;
  }

  std::mutex mutex_;
  std::multimap<std::size_t, std::unique_ptr<Block>> kept_;  // by bytes
  std::size_t kept_bytes_ = 0;
  std::size_t largest_ = 0;  // of all that were taken
};

c10::DataPtr memory_of(std::size_t bytes, at::Device device) {
  return device.is_cpu() ? Pool::instance().take(bytes) : c10::GetAllocator(device.type())->allocate(bytes);
}

}  // namespace

void configure_memory() { at::globalContext().setFlushDenormal(true); }

at::Tensor releasable(std::int64_t count, at::ScalarType type, at::Device device) {
  at::Tensor out = at::empty({0}, at::TensorOptions(device).dtype(type));
  const std::size_t bytes = static_cast<std::size_t>(count) * out.element_size();
  c10::StorageImpl& memory = *out.storage().unsafeGetStorageImpl();
  memory.set_data_ptr_noswap(memory_of(bytes, device));
  memory.set_nbytes(bytes);
  out.unsafeGetTensorImpl()->set_sizes_contiguous({count});
  return out;
}

void release(const at::Tensor& tensor) {
  ensure(tensor.storage_offset() == 0, "what is released has memory of its own");
  c10::StorageImpl& memory = *tensor.storage().unsafeGetStorageImpl();
  memory.set_data_ptr_noswap(c10::DataPtr(nullptr, tensor.device()));
  memory.set_nbytes(0);
}

bool hold(const at::Tensor& tensor) {
  c10::StorageImpl& memory = *tensor.storage().unsafeGetStorageImpl();
  if (memory.nbytes() == tensor.nbytes()) return false;
  memory.set_data_ptr_noswap(memory_of(tensor.nbytes(), tensor.device()));
  memory.set_nbytes(tensor.nbytes());
  return true;
}

}  // namespace tessera::nn
