// internal: lines of formats with named columns as the cells of the columns that a model reads.
#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/job.hpp"

namespace tessera::data {

// The columns that a model reads, in this order: the label, numbers, categories, and the history where there is one.
std::vector<std::string> wanted_columns(const model::ClickColumns& columns);

// What stands in them in one line, each a list of values.
class Cells {
 public:
  explicit Cells(std::size_t columns) : values_(columns) {}
  void clear();
  std::vector<std::string_view>& at(std::size_t column) { return values_[column]; }
  const std::vector<std::string_view>& at(std::size_t column) const { return values_[column]; }
  // For values that do not stand in the line as they are; valid until clear().
  std::string& made() { return made_.emplace_back(); }

 private:
  std::vector<std::vector<std::string_view>> values_;
  std::deque<std::string> made_;
};

// Immutable; safe to use from several threads.
class CellReader {
 public:
  virtual ~CellReader() = default;
  // Into cells of wanted_columns(), which are valid as long as the line. Returns what is wrong with it; empty: nothing.
  virtual std::string read(std::string_view line, Cells& cells) const = 0;
};

// Whether each of wanted_columns() holds a list: a category with several look-ups, and a history.
std::vector<bool> columns_of_lists(const model::ClickColumns& columns, std::int64_t lookups);
// Values between separators; no text, no values.
void split_list(std::string_view cell, char separator, std::vector<std::string_view>& values);

// Fields between separators, quoted or not as RFC 4180 says, but that a field may not have a line break. `names`: of all columns. Throws
// invalid_config for a column that is not there, with the nearest name.
std::unique_ptr<CellReader> make_csv(const model::ClickColumns& columns, const std::vector<std::string>& names, std::int64_t lookups,
                                     const Where& where);
// The fields of a line of CSV.
std::vector<std::string> csv_fields(std::string_view line, char separator);
// Reads, for each of columns.names, the number of its values and then the values, separated by spaces (MultiSlotDataFeed of PaddlePaddle).
std::unique_ptr<CellReader> make_multislot(const model::ClickColumns& columns);

// Where each wanted column stands among `names`. Throws invalid_config for one that is not there, with the nearest name.
std::vector<std::size_t> places_among(const std::vector<std::string>& wanted, const std::vector<std::string>& names, const Where& where);

}  // namespace tessera::data
