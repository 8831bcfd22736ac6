// internal: the lines of a click log, found by their number.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_system.hpp"
#include "data/clicks/click_format.hpp"
#include "data/source.hpp"

namespace tessera::data {

// What stands in a file: mapped, or, where it is compressed, decompressed into memory. Immutable.
class ClickText {
 public:
  // Throws not_found, io, and corrupt for compressed files that are damaged.
  explicit ClickText(const SourceFile& file);
  const std::filesystem::path& path() const { return path_; }
  std::string_view content() const;

 private:
  std::filesystem::path path_;
  std::optional<MappedFile> map_;
  std::string held_;
};

// Reads all of a text once, in several threads, to check each line and to keep where every 16th begins. Immutable; safe to use from several
// threads.
class ClickFile {
 public:
  // The first line does not count with `header`. Throws corrupt as LeftOutLines does; invalid_config, which names the line, for an id that
  // its table does not have, and where there is no line.
  ClickFile(ClickText source, const ClickFormat& format, const ClickShape& shape, model::OnError on_error, bool header, int threads,
            const Where& where);

  std::int64_t size() const { return size_; }  // lines that can be read
  // Without its end; index < size(). Takes the time to look at 16 lines at most.
  std::string_view line(std::int64_t index) const;
  bool clicked(std::int64_t index) const;
  std::uint64_t content_hash() const { return content_hash_; }
  const std::filesystem::path& path() const { return source_.path(); }
  // How many lines were left out, and which were the first; empty: none.
  const std::string& note() const { return note_; }

 private:
  // A stretch of whole lines.
  struct Part {
    std::size_t begin = 0;
    std::size_t end = 0;
    std::int64_t lines = 0;                // all of them
    std::int64_t before = 0;               // lines of earlier parts that can be read
    std::vector<std::size_t> begins;       // of every kApart-th line that can be read
    std::vector<bool> clicked;             // of those that can
    std::vector<std::size_t> left_out;     // where lines begin that cannot be, ascending
    std::vector<std::int64_t> left_lines;  // their numbers in this part, from 1
    std::string beyond;                    // what ended the scan at the last line
  };
  std::string_view line_at(std::size_t begin) const;
  void scan(Part& part, const ClickFormat& format, const ClickShape& shape, bool skips) const;
  void cut(std::size_t begin, int parts);
  std::uint64_t hash() const;
  const Part& part_of(std::int64_t index) const;

  ClickText source_;
  std::vector<Part> parts_;
  std::int64_t size_ = 0;
  std::string note_;
  std::uint64_t content_hash_ = 0;
};

}  // namespace tessera::data
