#include "cli/temporary_folder.hpp"

#include <cerrno>
#include <stdlib.h>
#include <string>

#include "base/error.hpp"

namespace tessera::cli {

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "tessera-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw_errno("create folder", name, errno);
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tessera::cli
