#include "data/clicks/click_file.hpp"

#include <algorithm>
#include <future>

#include "base/hash.hpp"
#include "data/byte_stream.hpp"
#include "data/clicks/left_out.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

constexpr std::int64_t kApart = 16;
constexpr std::size_t kHashed = 16 << 20;
// A part that has so many more lines that cannot be read than lines that can is no click log; what is known of it suffices to refuse it.
constexpr std::size_t kMostLeftOut = 1 << 20;

std::string_view without_return(std::string_view line) { return line.substr(0, line.size() - (line.ends_with('\r') ? 1 : 0)); }

}  // namespace

ClickText::ClickText(const SourceFile& file) : path_(file.path) {
  if (file.compression == Compression::none) {
    map_.emplace(file.path);
    return;
  }
  const auto bytes = open_bytes(file);
  for (std::string_view piece = bytes->next(); !piece.empty(); piece = bytes->next()) held_ += piece;
}

std::string_view ClickText::content() const {
  if (!map_) return held_;
  return {reinterpret_cast<const char*>(map_->bytes().data()), map_->bytes().size()};
}

ClickFile::ClickFile(ClickText source, const ClickFormat& format, const ClickShape& shape, model::OnError on_error, bool header,
                     int threads, const Where& where)
    : source_(std::move(source)) {
  const bool skips = on_error == model::OnError::skip;
  cut(header ? std::min(line_at(0).size() + 1, source_.content().size()) : 0, threads);
  std::vector<std::future<void>> scans;
  for (Part& part : parts_) scans.push_back(std::async(std::launch::async, [&] { scan(part, format, shape, skips); }));
  content_hash_ = hash();
  for (auto& one : scans) one.get();

  LeftOutLines left_out(path(), on_error, "line");
  ClickSample sample(shape);
  std::int64_t lines = header ? 1 : 0;
  for (Part& part : parts_) {
    for (std::size_t i = 0; i < part.left_out.size(); ++i)
      left_out.add(lines + part.left_lines[i], format.read(without_return(line_at(part.left_out[i])), sample.room()));
    lines += part.lines;
    if (!part.beyond.empty()) throw beyond_rows_error(part.beyond, in_file(path(), static_cast<int>(lines)));
    part.before = size_;
    size_ += std::ssize(part.clicked);
  }
  note_ = left_out.note();
  if (size_ == 0) throw Error(ErrorCode::invalid_config, path().string() + " has no lines", where, "a file with lines");
}

// Into `parts` of about as many bytes.
void ClickFile::cut(std::size_t begin, int parts) {
  const std::string_view content = source_.content();
  const std::size_t size = content.size() - begin;
  for (int i = 1; i <= parts && begin < content.size(); ++i) {
    std::size_t end = content.size() - size + size / static_cast<std::size_t>(parts) * static_cast<std::size_t>(i);
    if (i == parts) end = content.size();
    if (end <= begin) continue;
    end = std::min(content.find('\n', end - 1), content.size() - 1) + 1;
    Part& part = parts_.emplace_back();
    part.begin = begin;
    part.end = end;
    begin = end;
  }
}

void ClickFile::scan(Part& part, const ClickFormat& format, const ClickShape& shape, bool skips) const {
  ClickSample sample(shape);
  const ClickRoom room = sample.room();
  for (std::size_t begin = part.begin; begin < part.end;) {
    const std::string_view line = line_at(begin);
    ++part.lines;
    if (!format.read(without_return(line), room).empty()) {
      part.left_out.push_back(begin);
      part.left_lines.push_back(part.lines);
      if (!skips || part.left_out.size() > kMostLeftOut + part.clicked.size()) return;
    } else {
      part.beyond = beyond_rows(room, shape);
      if (!part.beyond.empty()) return;
      if (std::ssize(part.clicked) % kApart == 0) part.begins.push_back(begin);
      part.clicked.push_back(room.label == 1);
    }
    begin += line.size() + 1;
  }
}

std::uint64_t ClickFile::hash() const {
  const std::string_view content = source_.content();
  std::uint64_t value = 0;
  for (std::size_t begin = 0; begin < content.size(); begin += kHashed) value = hash64(content.substr(begin, kHashed), value);
  return value;
}

std::string_view ClickFile::line_at(std::size_t begin) const {
  const std::string_view content = source_.content();
  return content.substr(begin, std::min(content.find('\n', begin), content.size()) - begin);
}

const ClickFile::Part& ClickFile::part_of(std::int64_t index) const {
  ensure(index >= 0 && index < size_, text("line ", index, " of ", size_));
  return *std::prev(
      std::upper_bound(parts_.begin(), parts_.end(), index, [](std::int64_t value, const Part& part) { return value < part.before; }));
}

std::string_view ClickFile::line(std::int64_t index) const {
  const Part& part = part_of(index);
  index -= part.before;
  std::size_t begin = part.begins.at(static_cast<std::size_t>(index / kApart));
  const auto pass = [&] { begin += line_at(begin).size() + 1; };
  for (std::int64_t left = index % kApart; left > 0; --left) {
    pass();
    while (std::binary_search(part.left_out.begin(), part.left_out.end(), begin)) pass();
  }
  return without_return(line_at(begin));
}

bool ClickFile::clicked(std::int64_t index) const {
  const Part& part = part_of(index);
  return part.clicked[static_cast<std::size_t>(index - part.before)];
}

}  // namespace tessera::data
