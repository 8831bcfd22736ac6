// Libraries that are loaded when they are needed. They stay loaded: what one hooked into the process may outlive its unloading.
#pragma once

#include <dlfcn.h>

#include <string>

namespace tessera {

class DynamicLibrary {
 public:
  DynamicLibrary() = default;
  // A path, or a name that the loader looks for. Empty where it cannot be loaded; `why` is then the loader's reason.
  DynamicLibrary(const std::string& name, std::string& why);
  explicit operator bool() const { return handle_ != nullptr; }
  // The file.
  std::string path() const;
  // False where the library has no function of this name.
  template <typename Function>
  bool find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(::dlsym(handle_, name));
    return function != nullptr;
  }

 private:
  void* handle_ = nullptr;
};

}  // namespace tessera
