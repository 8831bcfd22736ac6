// Internal: a file that grows by whole lines (or records) or not at all.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>

namespace tessera::observe {

class LineFile {
 public:
  // Creates it where missing. Throws io.
  explicit LineFile(std::filesystem::path path);
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;
  ~LineFile();  // tries once more to write what waits
  // In one write at the end. What a full disk refuses is kept for the next call, so that no line is lost while space is short (a
  // checkpoint that did not fit has not been removed yet, say). Up to kMostWaiting bytes wait; further records are dropped. False:
  // the record waits or is dropped; the first such time with a warning in the log.
  bool append(std::string_view record);

 private:
  bool write_waiting();

  static constexpr std::size_t kMostWaiting = std::size_t{1} << 20;
  const std::filesystem::path path_;
  int descriptor_ = -1;
  std::string waiting_;  // whole records
  bool warned_ = false;
};

}  // namespace tessera::observe
