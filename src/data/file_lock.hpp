// internal: one process at a time builds a file of the cache.
#pragma once

#include <filesystem>

#include "base/clock.hpp"
#include "data/progress.hpp"

namespace tessera::data {

// An advisory lock on `path`, which is made if need be and stays. The operating system gives it back when the process ends, however
// it ends. Where it cannot be had in time, or on file systems without locks, the work goes on without it: files are renamed into place
// whole, so building one twice is a waste but no danger.
class FileLock {
 public:
  FileLock(const std::filesystem::path& path, Seconds patience, const ProgressCallback& progress);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  bool held() const { return held_; }

 private:
  int descriptor_ = -1;
  bool held_ = false;
};

// Removes the temporary files that builders of `path` left behind when they were killed. Only while holding its lock.
void remove_abandoned(const std::filesystem::path& path);

}  // namespace tessera::data
