#include "base/file_system.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>

#include "base/error.hpp"

namespace tessera {
namespace {

class RealFile final : public WritableFile {
 public:
  explicit RealFile(std::filesystem::path path) : path_(std::move(path)) {
    descriptor_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) throw_errno("create", path_, errno);
  }
  ~RealFile() override {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  void append(std::span<const std::byte> data) override {
    while (!data.empty()) {
      const ssize_t written = ::write(descriptor_, data.data(), data.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw_errno("write", path_, errno);
      data = data.subspan(static_cast<std::size_t>(written));
    }
  }
  void sync() override {
    if (::fsync(descriptor_) != 0) throw_errno("sync", path_, errno);
  }
  void close() override {
    const int descriptor = descriptor_;
    descriptor_ = -1;
    if (::close(descriptor) != 0) throw_errno("close", path_, errno);
  }

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

class RealFileSystem final : public FileSystem {
 public:
  std::unique_ptr<WritableFile> create(const std::filesystem::path& path) override { return std::make_unique<RealFile>(path); }
  void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) throw_errno("rename " + from.string() + " to", to, errno);
  }
  void sync_directory(const std::filesystem::path& path) override {
    const std::filesystem::path folder = path.empty() ? "." : path;
    const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor < 0) throw_errno("open folder", folder, errno);
    const int result = ::fsync(descriptor);
    const int error_number = errno;
    ::close(descriptor);
    if (result != 0) throw_errno("sync folder", folder, error_number);
  }
  void create_directories(const std::filesystem::path& path) override {
    std::error_code error;
    std::filesystem::create_directories(path, error);
    if (error) throw_errno("create folder", path, error.value());
  }
  void remove_all(const std::filesystem::path& path) override {
    std::error_code error;
    std::filesystem::remove_all(path, error);
    if (error) throw_errno("remove", path, error.value());
  }
};

}  // namespace

FileSystem& real_file_system() {
  static RealFileSystem files;
  return files;
}

void write_whole(FileSystem& files, const std::filesystem::path& path, std::span<const std::byte> content) {
  std::filesystem::path temporary = path;
  temporary += text(".tmp.", ::getpid());
  try {
    auto file = files.create(temporary);
    file->append(content);
    file->sync();
    file->close();
    files.rename(temporary, path);
  } catch (const Error&) {
    std::error_code ignored;
    std::filesystem::remove(temporary, ignored);
    throw;
  }
  files.sync_directory(path.parent_path());
}

void write_whole(FileSystem& files, const std::filesystem::path& path, const std::string& content) {
  write_whole(files, path, std::as_bytes(std::span(content.data(), content.size())));
}

void write_named(const std::filesystem::path& path, const std::string& content) {
  if (path.has_parent_path()) real_file_system().create_directories(path.parent_path());
  write_whole(real_file_system(), path, content);
}

void check_can_write(const std::filesystem::path& path) {
  if (std::filesystem::is_directory(path)) throw_errno("write", path, EISDIR);
  std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  while (!std::filesystem::exists(folder)) folder = folder.parent_path();
  if (!std::filesystem::is_directory(folder)) throw_errno("write", path, ENOTDIR);
  if (::access(folder.c_str(), W_OK) != 0) throw_errno("write", path, errno);
}

std::string read_whole(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_errno("read", path, errno);
  std::string content;
  struct stat status {};
  if (::fstat(descriptor, &status) == 0 && status.st_size > 0) content.reserve(static_cast<std::size_t>(status.st_size));
  char buffer[1 << 16];
  for (;;) {
    const ssize_t count = ::read(descriptor, buffer, sizeof buffer);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      const int error_number = errno;
      ::close(descriptor);
      throw_errno("read", path, error_number);
    }
    if (count == 0) break;
    content.append(buffer, static_cast<std::size_t>(count));
  }
  ::close(descriptor);
  return content;
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) throw_errno("open", path, errno);
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) {
    const int error_number = errno;
    ::close(descriptor);
    throw_errno("inspect", path, error_number);
  }
  size_ = static_cast<std::size_t>(status.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    const int error_number = errno;
    ::close(descriptor);
    if (address == MAP_FAILED) throw_errno("map", path, error_number);
    data_ = static_cast<const std::byte*>(address);
  } else {
    ::close(descriptor);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace tessera
