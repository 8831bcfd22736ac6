// Text in columns for the terminal, measured by what it takes there and not by its bytes.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// Columns that a terminal gives to the text: two to a wide character, none to a combining one, one to a byte that is not UTF-8.
int display_width(std::string_view words);

// Lines of at most `columns`. Breaks at spaces, but not beside a digit, so that figures keep their units; what has no such space in it is
// cut where the line ends. One empty line for an empty text.
std::vector<std::string> wrapped(std::string_view words, int columns);

// The text with its lines wrapped to so many columns; 0: no limit. For prose between tables.
std::string fitted(std::string_view text, int columns);

// Rows under a head, two spaces between columns, each as wide as its widest cell.
class Table {
 public:
  enum class Align {
    left,
    right,
    wrapped  // left, and where a line would be too long, the text goes on below
  };
  struct Column {
    std::string head;
    Align align = Align::left;
  };

  explicit Table(std::vector<Column> columns);
  // Adds a row, with as many cells as there are columns.
  void add(std::vector<std::string> cells);
  // Each line ends with a newline. `columns`: of the terminal, 0 for no limit. Wrapped columns give way, the widest first, down to ten
  // characters; the others never do. Without any head the rows alone.
  std::string text(int columns) const;
  // Whether no line of it is longer.
  bool fits(int columns) const;

 private:
  std::vector<int> widths(int columns) const;
  std::string line(const std::vector<std::string>& cells, const std::vector<int>& widths) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace tessera
