#include "data/file_lock.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>
#include <cerrno>
#include <vector>

#include "base/error.hpp"

namespace tessera::data {

FileLock::FileLock(const std::filesystem::path& path, Seconds patience, const ProgressCallback& progress) {
  descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_errno("create", path, errno);
  ProgressMeter meter(progress, "waiting for another process");
  const Seconds start = real_clock().now();
  while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    const Seconds waited = real_clock().now() - start;
    if ((errno != EWOULDBLOCK && errno != EINTR) || waited > patience) return;
    try {
      meter.update(waited.value, patience.value);
    } catch (...) {
      ::close(descriptor_);
      throw;
    }
    real_clock().sleep(Seconds(0.02));
  }
  held_ = true;
}

FileLock::~FileLock() { ::close(descriptor_); }

void remove_abandoned(const std::filesystem::path& path) {
  std::error_code error;
  const std::string prefix = path.filename().string() + ".tmp.";
  std::vector<std::filesystem::path> abandoned;
  for (const auto& entry : std::filesystem::directory_iterator(path.parent_path(), error)) {
    if (entry.path().filename().string().starts_with(prefix)) abandoned.push_back(entry.path());
  }
  for (const auto& file : abandoned) std::filesystem::remove(file, error);
}

}  // namespace tessera::data
