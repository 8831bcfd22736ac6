#include "data/clicks/click_file.hpp"

#include <algorithm>

#include "base/hash.hpp"
#include "data/clicks/keys.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

constexpr std::int64_t kApart = 16;
constexpr std::size_t kNamed = 3;
constexpr std::int64_t kLeastBudget = 10;
constexpr std::int64_t kShareOfBudget = 100;
constexpr std::size_t kHashed = 16 << 20;

std::string_view without_return(std::string_view line) { return line.substr(0, line.size() - (line.ends_with('\r') ? 1 : 0)); }

}  // namespace

ClickFile::ClickFile(const std::filesystem::path& file, const ClickFormat& format, const std::vector<std::int64_t>& rows,
                     std::int64_t dense, std::int64_t lookups, model::OnError on_error, const Where& where)
    : path_(file), map_(file) {
  const auto bytes = map_.bytes();
  content_ = {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  std::int32_t label = 0;
  std::vector<float> numbers(static_cast<std::size_t>(dense));
  std::vector<std::uint64_t> keys(rows.size() * static_cast<std::size_t>(lookups));
  // Up to the end of the block of `begin`, while its bytes are in the cache.
  std::size_t hashed = 0;
  const auto hash_to = [&](std::size_t end) {
    for (; hashed < end; hashed += kHashed) content_hash_ = hash64(content_.substr(hashed, kHashed), content_hash_);
  };
  std::int64_t number = 0;
  for (std::size_t begin = 0; begin < content_.size();) {
    hash_to(begin + 1);
    const std::string_view line = line_at(begin);
    ++number;
    const std::string problem = format.read(without_return(line), {label, numbers, keys});
    if (!problem.empty()) {
      if (left_lines_.size() < kNamed) left_lines_.push_back(number);
      if (left_out_.empty()) first_problem_ = problem;
      left_out_.push_back(begin);
      const bool skips = on_error == model::OnError::skip;
      if (!skips || std::ssize(left_out_) > std::max(kLeastBudget, number / kShareOfBudget))
        throw Error(ErrorCode::corrupt,
                    skips ? text(left_out_.size(), " of the first ", number, " lines cannot be read; of this one, ", problem)
                          : text("the line cannot be read: ", problem),
                    in_file(file, static_cast<int>(number)), "lines as data.format says",
                    skips ? "another data.format, or a file that is whole" : "data.on_error: skip leaves such lines out and counts them");
    } else {
      for (std::size_t i = 0; i < keys.size(); ++i) {
        const std::size_t table = i / static_cast<std::size_t>(lookups);
        if (rows[table] == 0 || keys[i] == kNoKey || id_of(keys[i]) == kEmptyId || id_of(keys[i]) < static_cast<std::uint64_t>(rows[table]))
          continue;
        throw Error(ErrorCode::invalid_config,
                    text("id ", id_of(keys[i]), " of table ", table + 1, ", for which model.tables declares ", rows[table], " rows"),
                    in_file(file, static_cast<int>(number)), text("ids from 0 to ", rows[table] - 1),
                    "0 for this table in model.tables, or a number of tables in place of the list: any id has a row then");
      }
      if (size_ % kApart == 0) begins_.push_back(begin);
      ++size_;
    }
    begin += line.size() + 1;
  }
  hash_to(content_.size());
  if (size_ == 0) throw Error(ErrorCode::invalid_config, file.string() + " has no lines", where, "a file with lines");
}

std::string_view ClickFile::line_at(std::size_t begin) const {
  return content_.substr(begin, std::min(content_.find('\n', begin), content_.size()) - begin);
}

std::string_view ClickFile::line(std::int64_t index) const {
  std::size_t begin = begins_.at(static_cast<std::size_t>(index / kApart));
  const auto pass = [&] { begin += line_at(begin).size() + 1; };
  for (std::int64_t left = index % kApart; left > 0; --left) {
    pass();
    while (std::binary_search(left_out_.begin(), left_out_.end(), begin)) pass();
  }
  return without_return(line_at(begin));
}

std::string ClickFile::note() const {
  if (left_out_.empty()) return {};
  std::string lines;
  for (const std::int64_t line : left_lines_) lines += text(lines.empty() ? "" : ", ", line);
  if (left_out_.size() > left_lines_.size()) lines += ", ...";
  return text(path_.string(), ": ", left_out_.size(), " lines cannot be read and were left out (", lines, "); of the first, ",
              first_problem_);
}

}  // namespace tessera::data
