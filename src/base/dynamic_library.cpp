#include "base/dynamic_library.hpp"

#include <link.h>

namespace tessera {

DynamicLibrary::DynamicLibrary(const std::string& name, std::string& why)
    : handle_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
  if (handle_ == nullptr) why = ::dlerror();
}

std::string DynamicLibrary::path() const {
  const link_map* map = nullptr;
  return ::dlinfo(handle_, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : "";
}

}  // namespace tessera
