// Internal: a file that grows by whole lines (or records) or not at all.
#pragma once

#include <filesystem>
#include <string_view>

namespace tessera::observe {

class LineFile {
 public:
  // Creates it where missing. Throws io.
  explicit LineFile(std::filesystem::path path);
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile();
  // In one write at the end. When the disk refuses, what was written of it is taken back, and false is returned; the first such
  // time with a warning in the log.
  bool append(std::string_view record);

 private:
  const std::filesystem::path path_;
  int descriptor_ = -1;
  bool warned_ = false;
};

}  // namespace tessera::observe
