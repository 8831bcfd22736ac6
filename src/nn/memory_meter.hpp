// How many bytes of tensors a thread holds.
#pragma once

#include <c10/core/Allocator.h>
#include <algorithm>
#include <cstdint>
#include <memory>

namespace tessera::nn {

// Bytes of CPU tensors that were made since the meter was set in, less those that were freed since, and the most these ever were. The
// allocator tells it through c10::DebugInfoGuard(c10::DebugInfoKind::PROFILER_STATE, meter), of this thread alone.
class MemoryMeter : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, std::int64_t change, std::size_t, std::size_t, c10::Device) override {
    held_ += change;
    peak_ = std::max(peak_, held_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  std::int64_t held() const { return held_; }
  std::int64_t peak() const { return peak_; }
  // Forgets the most until now.
  void restart() { peak_ = held_; }

 private:
  std::int64_t held_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace tessera::nn
