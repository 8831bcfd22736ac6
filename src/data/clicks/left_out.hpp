// internal: lines of a click log that cannot be read, where they are left out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "model/job.hpp"

namespace tessera::data {

// Not thread-safe.
class LeftOutLines {
 public:
  // `what`: "line" or "row".
  LeftOutLines(std::filesystem::path file, model::OnError on_error, std::string what)
      : file_(std::move(file)), skips_(on_error == model::OnError::skip), what_(std::move(what)) {}

  // Numbers count from 1 and ascend. Throws corrupt, which names the line, without OnError::skip, and with it once more than 1 in 100 of
  // the lines so far (and more than 10) cannot be read.
  void add(std::int64_t number, const std::string& problem);
  std::int64_t count() const { return count_; }
  // How many were left out, and which were the first; empty: none.
  std::string note() const;

 private:
  std::filesystem::path file_;
  bool skips_;
  std::string what_;
  std::int64_t count_ = 0;
  std::vector<std::int64_t> first_;
  std::string first_problem_;
};

}  // namespace tessera::data
