#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <fstream>

#include "base/error.hpp"
#include "calibrate/table.hpp"

namespace tessera::calibrate {
namespace {

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (quoted && c == '"' && i + 1 < line.size() && line[i + 1] == '"') {
      out.back() += line[++i];
    } else if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      out.emplace_back();
    } else if (c != '\r') {
      out.back() += c;
    }
  }
  return out;
}

}  // namespace

std::vector<Cells> read_table(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw_errno("read", path.string(), errno);
  std::string line;
  std::getline(file, line);
  const std::vector<std::string> head = cells_of(line);
  std::vector<Cells> out;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const std::vector<std::string> cells = cells_of(line);
    if (cells.size() > head.size())
      throw Error(ErrorCode::invalid_config, text("row ", number, " has ", cells.size(), " cells"),
                  Where{path.string(), number + 1, 1, -1, ""}, text(head.size(), " as in the head"));
    Cells& row = out.emplace_back();
    for (std::size_t i = 0; i < cells.size(); ++i) row[head[i]] = cells[i];
  }
  return out;
}

std::string cell(const Cells& row, const std::string& column) {
  const auto found = row.find(column);
  return found == row.end() ? std::string() : found->second;
}

double number(const Cells& row, const std::string& column, double otherwise) {
  const std::string value = cell(row, column);
  char* end = nullptr;
  const double out = std::strtod(value.c_str(), &end);
  constexpr double kSenseless = 1e15;
  return end == value.c_str() || !(std::abs(out) < kSenseless) ? otherwise : out;
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace tessera::calibrate
