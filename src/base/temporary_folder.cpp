#include "base/temporary_folder.hpp"

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "base/error.hpp"

namespace tessera {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "tessera-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw_errno("create folder", name, errno);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
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
