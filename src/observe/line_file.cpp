#include "observe/line_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"

namespace tessera::observe {

LineFile::LineFile(std::filesystem::path path) : path_(std::move(path)) {
  descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (descriptor_ < 0) throw_errno("open", path_, errno);
}

LineFile::~LineFile() {
  write_waiting();
  ::close(descriptor_);
}

bool LineFile::append(std::string_view record) {
  const bool kept = waiting_.size() + record.size() <= kMostWaiting;
  if (kept) waiting_ += record;
  return write_waiting() && kept;
}

// All that waits, or nothing of it.
bool LineFile::write_waiting() {
  if (waiting_.empty()) return true;
  struct stat before {};
  ssize_t written = -1;
  if (::fstat(descriptor_, &before) == 0) {
    do written = ::write(descriptor_, waiting_.data(), waiting_.size());
    while (written < 0 && errno == EINTR);
  }
  if (written == static_cast<ssize_t>(waiting_.size())) {
    waiting_.clear();
    return true;
  }
  const int error_number = written < 0 ? errno : ENOSPC;
  const bool taken_back = written <= 0 || ::ftruncate(descriptor_, before.st_size) == 0;
  if (!warned_)
    log::warning(text("cannot write ", path_.string(), ": ", std::strerror(error_number),
                      "; training goes on, and these lines are written once there is space"));
  if (!taken_back) {
    log::warning(text("a line of ", path_.string(), " is cut short"));
    waiting_.clear();  // part of it is in the file
  }
  warned_ = true;
  return false;
}

}  // namespace tessera::observe
