// A folder of its own in the system's temporary folder; it goes, with all its content, with the object.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace tessera {

class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  // Removes those of this user whose processes were killed: each folder is locked for as long as its process lives.
  static void remove_abandoned();

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  // Writes a file, with the folders that it needs, and returns its path.
  std::filesystem::path write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;  // of the folder; holds its lock
};

}  // namespace tessera
