// internal: the lines of a click log, found by their number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.hpp"
#include "data/clicks/click_format.hpp"

namespace tessera::data {

// Maps the file and reads all of it once, to check each line and to keep where every 16th begins. Immutable; safe to use from several
// threads.
class ClickFile {
 public:
  // `rows`: of each table; 0: any id has a row. Throws not_found or io; corrupt, which names the line, for the first one that cannot be
  // read, or with OnError::skip when more than 1 in 100 (and more than 10) cannot; invalid_config, which names the line, for an id that its
  // table does not have.
  ClickFile(const std::filesystem::path& file, const ClickFormat& format, const std::vector<std::int64_t>& rows, std::int64_t dense,
            std::int64_t lookups, model::OnError on_error, const Where& where);

  std::int64_t size() const { return size_; }  // lines that can be read
  // Without its end; index < size(). Takes the time to look at 16 lines at most.
  std::string_view line(std::int64_t index) const;
  std::uint64_t content_hash() const { return content_hash_; }
  // How many lines were left out, and which were the first; empty: none.
  std::string note() const;

 private:
  std::string_view line_at(std::size_t begin) const;

  std::filesystem::path path_;
  MappedFile map_;
  std::string_view content_;
  std::int64_t size_ = 0;
  std::vector<std::size_t> begins_;       // of every kApart-th line that can be read
  std::vector<std::size_t> left_out_;     // where lines begin that cannot be, ascending
  std::vector<std::int64_t> left_lines_;  // the numbers of the first of them, from 1
  std::string first_problem_;
  std::uint64_t content_hash_ = 0;
};

}  // namespace tessera::data
