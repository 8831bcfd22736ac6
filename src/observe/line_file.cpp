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

LineFile::~LineFile() { ::close(descriptor_); }

bool LineFile::append(std::string_view record) {
  struct stat before {};
  ssize_t written = -1;
  if (::fstat(descriptor_, &before) == 0) {
    do written = ::write(descriptor_, record.data(), record.size());
    while (written < 0 && errno == EINTR);
  }
  if (written == static_cast<ssize_t>(record.size())) return true;
  const int error_number = written < 0 ? errno : ENOSPC;
  const bool taken_back = written <= 0 || ::ftruncate(descriptor_, before.st_size) == 0;
  if (!warned_)
    log::warning(text("cannot write ", path_.string(), ": ", std::strerror(error_number), "; training goes on without these lines"));
  if (!taken_back) log::warning(text("the last line of ", path_.string(), " is cut short"));
  warned_ = true;
  return false;
}

}  // namespace tessera::observe
