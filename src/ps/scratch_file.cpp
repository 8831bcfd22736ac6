#include "ps/scratch_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/uio.h>
#include <unistd.h>
#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "base/error.hpp"
#include "base/file_system.hpp"

namespace tessera::ps {

ScratchFile::ScratchFile(const std::filesystem::path& folder) : folder_(folder) {
  real_file_system().create_directories(folder);
  std::string name = folder / "rows.XXXXXX";
  descriptor_ = ::mkostemp(name.data(), O_CLOEXEC);
  if (descriptor_ < 0) throw_errno("create a file in", folder, errno);
  ::unlink(name.c_str());
  ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_RANDOM);  // single rows are read, and what lies beside one is another key's
}

ScratchFile::~ScratchFile() {
  if (mapped_ != nullptr) ::munmap(mapped_, mapped_bytes_);
  ::close(descriptor_);
}

void ScratchFile::write(std::uint64_t offset, std::span<const std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_errno("write to", folder_, errno);
    offset += static_cast<std::uint64_t>(written);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void ScratchFile::read(std::uint64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno("read from", folder_, errno);
    ensure(got > 0, "a table's rows on disk end too early");
    offset += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

bool ScratchFile::read_now(std::uint64_t offset, std::span<std::byte> bytes) const {
  const iovec to{bytes.data(), bytes.size()};
  if (::preadv2(descriptor_, &to, 1, static_cast<off_t>(offset), RWF_NOWAIT) == static_cast<ssize_t>(bytes.size())) return true;
  ::posix_fadvise(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes.size()), POSIX_FADV_WILLNEED);
  return false;
}

bool ScratchFile::map(std::uint64_t end) {
  if (maps(end)) return true;
  // Addresses alone, and more than there will be bytes: so this is seldom.
  const std::uint64_t bytes = std::bit_ceil(std::max(end, std::uint64_t{1} << 36));
  void* const mapped = mapped_ == nullptr ? ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, descriptor_, 0)
                                          : ::mremap(mapped_, mapped_bytes_, bytes, MREMAP_MAYMOVE);
  if (mapped == MAP_FAILED) return false;
  mapped_ = static_cast<std::byte*>(mapped);
  mapped_bytes_ = bytes;
  ::madvise(mapped, bytes, MADV_RANDOM);
  return true;
}

std::int64_t major_faults() {
  rusage used{};
  ::getrusage(RUSAGE_THREAD, &used);
  return used.ru_majflt;
}

}  // namespace tessera::ps
