#include "base/temporary_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "base/error.hpp"

namespace tessera {

namespace {

constexpr std::string_view kNew = "tessera-new-";  // not locked yet
constexpr std::string_view kHeld = "tessera-scratch-";

}  // namespace

void TemporaryFolder::remove_abandoned() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(std::filesystem::temp_directory_path(ignored), ignored)) {
    if (!entry.path().filename().string().starts_with(kHeld)) continue;
    const int descriptor = ::open(entry.path().c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (descriptor < 0) continue;
    struct stat status {};
    const bool own = ::fstat(descriptor, &status) == 0 && status.st_uid == ::geteuid();
    if (own && ::flock(descriptor, LOCK_EX | LOCK_NB) == 0) std::filesystem::remove_all(entry.path(), ignored);
    ::close(descriptor);
  }
}

TemporaryFolder::TemporaryFolder() {
  const auto place = std::filesystem::temp_directory_path();
  std::string name = (place / kNew).string() + "XXXXXX";
  if (::mkdtemp(name.data()) == nullptr) throw_errno("create folder", name, errno);
  descriptor_ = ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Where a file system has no such locks, nobody takes the folder for abandoned either.
  if (descriptor_ >= 0) ::flock(descriptor_, LOCK_EX | LOCK_NB);
  path_ = place / (std::string(kHeld) + name.substr(name.size() - 6));
  if (::rename(name.c_str(), path_.c_str()) != 0) throw_errno("rename " + name + " to", path_, errno);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
  if (descriptor_ >= 0) ::close(descriptor_);
}

std::filesystem::path TemporaryFolder::write(const std::string& name, std::string_view content) const {
  const std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out << content;
  if (!out.flush()) throw_errno("write", path.string(), errno);
  return path;
}

}  // namespace tessera
