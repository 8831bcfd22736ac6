#include "base/table.hpp"

#include <clocale>
#include <cwchar>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/error.hpp"

namespace tessera {
namespace {

constexpr int kGap = 2;
// A wrapped column does not become narrower.
constexpr int kNarrowest = 10;

// This thread's characters are UTF-8, whatever the user's locale, which the C library's functions below ask for.
class Utf8 {
 public:
  Utf8() : before_(utf8() != nullptr ? ::uselocale(utf8()) : nullptr) {}
  ~Utf8() {
    if (before_ != nullptr) ::uselocale(before_);
  }
  Utf8(const Utf8&) = delete;
  Utf8& operator=(const Utf8&) = delete;

 private:
  static locale_t utf8() {
    static const locale_t locale = ::newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    return locale;
  }
  const locale_t before_;
};

struct Character {
  std::size_t bytes = 1;
  int columns = 1;
};

// The first of `words`, which is not empty.
Character first_of(std::string_view words) {
  wchar_t character = 0;
  std::mbstate_t state{};
  const std::size_t bytes = std::mbrtowc(&character, words.data(), words.size(), &state);
  if (bytes == 0 || bytes > words.size()) return {};
  return {bytes, std::max(0, ::wcwidth(character))};
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The words that may stand on lines of their own.
std::vector<std::string_view> pieces_of(std::string_view words) {
  std::vector<std::string_view> out;
  std::size_t begin = 0;
  for (std::size_t i = 1; i + 1 < words.size(); ++i) {
    if (words[i] != ' ' || is_digit(words[i - 1]) || is_digit(words[i + 1])) continue;
    out.push_back(words.substr(begin, i - begin));
    begin = i + 1;
  }
  out.push_back(words.substr(begin));
  return out;
}

std::string trimmed(std::string line) {
  line.erase(line.find_last_not_of(' ') + 1);
  return line;
}

}  // namespace

int display_width(std::string_view words) {
  const Utf8 utf8;
  int columns = 0;
  while (!words.empty()) {
    const Character character = first_of(words);
    columns += character.columns;
    words.remove_prefix(character.bytes);
  }
  return columns;
}

std::vector<std::string> wrapped(std::string_view words, int columns) {
  const Utf8 utf8;
  std::vector<std::string> lines(1);
  int used = 0;
  for (std::string_view piece : pieces_of(words)) {
    const int width = display_width(piece);
    if (used > 0 && used + 1 + width > columns) {
      lines.emplace_back();
      used = 0;
    } else if (used > 0) {
      lines.back() += ' ';
      ++used;
    }
    while (!piece.empty()) {
      const Character character = first_of(piece);
      if (used > 0 && used + character.columns > columns) {
        lines.emplace_back();
        used = 0;
      }
      lines.back() += piece.substr(0, character.bytes);
      used += character.columns;
      piece.remove_prefix(character.bytes);
    }
  }
  return lines;
}

std::string fitted(std::string_view text, int columns) {
  if (columns == 0) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    if (display_width(line) <= columns) {
      out += line;
    } else {
      const std::vector<std::string> lines = wrapped(line, columns);
      for (std::size_t l = 0; l < lines.size(); ++l) out += (l > 0 ? "\n" : "") + trimmed(lines[l]);
    }
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::add(std::vector<std::string> cells) {
  ensure(cells.size() == columns_.size(), "a row has as many cells as its table has columns");
  rows_.push_back(std::move(cells));
}

std::vector<int> Table::widths(int columns) const {
  std::vector<int> out;
  int total = -kGap;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    int width = display_width(columns_[c].head);
    for (const std::vector<std::string>& row : rows_) width = std::max(width, display_width(row[c]));
    out.push_back(width);
    total += width + kGap;
  }
  for (; columns > 0 && total > columns; --total) {
    int* widest = nullptr;
    for (std::size_t c = 0; c < columns_.size(); ++c)
      if (columns_[c].align == Align::wrapped && out[c] > kNarrowest && (widest == nullptr || out[c] > *widest)) widest = &out[c];
    if (widest == nullptr) break;
    --*widest;
  }
  return out;
}

bool Table::fits(int columns) const {
  const std::vector<int> fitting = widths(columns);
  return columns == 0 ||
         std::accumulate(fitting.begin(), fitting.end(), -kGap, [](int sum, int width) { return sum + width + kGap; }) <= columns;
}

std::string Table::line(const std::vector<std::string>& cells, const std::vector<int>& widths) const {
  std::vector<std::vector<std::string>> parts;
  std::size_t height = 1;
  for (std::size_t c = 0; c < cells.size(); ++c) {
    parts.push_back(columns_[c].align == Align::wrapped ? wrapped(cells[c], widths[c]) : std::vector<std::string>{cells[c]});
    height = std::max(height, parts.back().size());
  }
  std::string out;
  for (std::size_t l = 0; l < height; ++l) {
    std::string line;
    for (std::size_t c = 0; c < parts.size(); ++c) {
      const std::string part = l < parts[c].size() ? parts[c][l] : std::string();
      const std::string blanks(static_cast<std::size_t>(std::max(0, widths[c] - display_width(part))), ' ');
      line += std::string(c > 0 ? kGap : 0, ' ') + (columns_[c].align == Align::right ? blanks + part : part + blanks);
    }
    out += trimmed(std::move(line)) + "\n";
  }
  return out;
}

std::string Table::text(int columns) const {
  const std::vector<int> fitting = widths(columns);
  std::vector<std::string> heads;
  for (const Column& column : columns_) heads.push_back(column.head);
  const bool headed = std::any_of(heads.begin(), heads.end(), [](const std::string& head) { return !head.empty(); });
  std::string out = headed ? line(heads, fitting) : std::string();
  for (const std::vector<std::string>& row : rows_) out += line(row, fitting);
  return out;
}

}  // namespace tessera
