#include "data/clicks/cells.hpp"

#include <algorithm>
#include <cstdint>

#include "base/config.hpp"
#include "data/clicks/line_fields.hpp"

namespace tessera::data {
namespace {

// By a column's place in the file, which of the wanted ones it is.
std::vector<std::vector<std::size_t>> wanted_by_place(const std::vector<std::size_t>& places, std::size_t columns) {
  std::vector<std::vector<std::size_t>> wanted(columns);
  for (std::size_t i = 0; i < places.size(); ++i) wanted[places[i]].push_back(i);
  return wanted;
}

enum class FieldEnd { separator, line, broken };

// Takes a field off the line: a quoted one up to its quote's end, with two quotes for one. Broken: its quote does not end, or something
// stands behind it.
FieldEnd take_csv(std::string_view& line, char separator, std::string_view& field, Cells& cells) {
  if (!line.starts_with('"')) {
    const bool last = line.find(separator) == std::string_view::npos;
    field = take_field(line, separator);
    return last ? FieldEnd::line : FieldEnd::separator;
  }
  std::string* whole = nullptr;
  for (std::size_t begin = 1;;) {
    const std::size_t quote = line.find('"', begin);
    if (quote == std::string_view::npos) return FieldEnd::broken;
    const bool doubled = quote + 1 < line.size() && line[quote + 1] == '"';
    if (doubled && whole == nullptr) whole = &cells.made();
    if (whole != nullptr) *whole += line.substr(begin, quote - begin + (doubled ? 1 : 0));
    begin = quote + 2;
    if (doubled) continue;
    field = whole != nullptr ? std::string_view(*whole) : line.substr(1, quote - 1);
    line.remove_prefix(quote + 1);
    break;
  }
  if (line.empty()) return FieldEnd::line;
  if (line.front() != separator) return FieldEnd::broken;
  line.remove_prefix(1);
  return FieldEnd::separator;
}

class Csv final : public CellReader {
 public:
  Csv(const std::vector<std::size_t>& places, std::size_t columns, std::vector<bool> lists, char separator, char between)
      : wanted_(wanted_by_place(places, columns)), lists_(std::move(lists)), separator_(separator), between_(between) {}

  std::string read(std::string_view line, Cells& cells) const override {
    for (std::size_t place = 0; place < wanted_.size(); ++place) {
      std::string_view field;
      const FieldEnd end = take_csv(line, separator_, field, cells);
      const bool last = place + 1 == wanted_.size();
      if (end == FieldEnd::broken) return text("its field ", place + 1, " has a quote that does not end where the field does");
      if (end == FieldEnd::line && !last) return text("it has ", place + 1, " fields, and not ", wanted_.size());
      if (end == FieldEnd::separator && last) return text("it has more than ", wanted_.size(), " fields");
      for (const std::size_t column : wanted_[place]) {
        if (lists_[column])
          split_list(field, between_, cells.at(column));
        else
          cells.at(column).push_back(field);
      }
    }
    return {};
  }

 private:
  std::vector<std::vector<std::size_t>> wanted_;
  std::vector<bool> lists_;
  char separator_, between_;
};

class Multislot final : public CellReader {
 public:
  Multislot(std::vector<std::string> names, const std::vector<std::size_t>& places)
      : names_(std::move(names)), wanted_(wanted_by_place(places, names_.size())) {}

  std::string read(std::string_view line, Cells& cells) const override {
    for (std::size_t slot = 0; slot < names_.size(); ++slot) {
      const std::string_view count_text = take_word(line);
      std::uint64_t count = 0;
      if (count_text.empty()) return text("it ends before slot '", names_[slot], "'");
      if (!is_number(count_text, count))
        return text("slot '", names_[slot], "' has '", count_text, "' values, and not a whole number of them");
      for (std::uint64_t i = 0; i < count; ++i) {
        const std::string_view value = take_word(line);
        if (value.empty()) return text("it ends behind ", i, " of the ", count, " values of slot '", names_[slot], "'");
        for (const std::size_t column : wanted_[slot]) cells.at(column).push_back(value);
      }
    }
    if (const std::string_view more = take_word(line); !more.empty())
      return text("'", more, "' stands behind its last slot, '", names_.back(), "'");
    return {};
  }

 private:
  static std::string_view take_word(std::string_view& line) {
    while (line.starts_with(' ') || line.starts_with('\t')) line.remove_prefix(1);
    const std::string_view word = line.substr(0, line.find_first_of(" \t"));
    line.remove_prefix(word.size());
    return word;
  }

  std::vector<std::string> names_;
  std::vector<std::vector<std::size_t>> wanted_;
};

}  // namespace

std::vector<std::string> wanted_columns(const model::ClickColumns& columns) {
  std::vector<std::string> names = {columns.label};
  names.insert(names.end(), columns.dense.begin(), columns.dense.end());
  for (const model::CategoryColumn& column : columns.categories) names.push_back(column.name);
  if (!columns.history.empty()) names.push_back(columns.history);
  return names;
}

void Cells::clear() {
  for (auto& values : values_) values.clear();
  made_.clear();
}

std::vector<bool> columns_of_lists(const model::ClickColumns& columns, std::int64_t lookups) {
  std::vector<bool> lists(1 + columns.dense.size(), false);
  lists.resize(lists.size() + columns.categories.size(), lookups > 1);
  if (!columns.history.empty()) lists.push_back(true);
  return lists;
}

void split_list(std::string_view cell, char separator, std::vector<std::string_view>& values) {
  while (!cell.empty()) values.push_back(take_field(cell, separator));
}

std::vector<std::size_t> places_among(const std::vector<std::string>& wanted, const std::vector<std::string>& names, const Where& where) {
  std::vector<std::size_t> places;
  for (const std::string& name : wanted) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      std::string all;
      for (const std::string& one : names) all += (all.empty() ? "" : ", ") + one;
      const auto guess = nearest(name, names);
      throw Error(ErrorCode::invalid_config, text("there is no column '", name, "'"), where, "one of: " + all,
                  guess ? text("did you mean '", *guess, "'?") : "data.columns names what the model reads");
    }
    places.push_back(static_cast<std::size_t>(found - names.begin()));
  }
  return places;
}

std::vector<std::string> csv_fields(std::string_view line, char separator) {
  std::vector<std::string> fields;
  Cells cells(0);
  FieldEnd end = FieldEnd::separator;
  while (end == FieldEnd::separator) {
    std::string_view field;
    end = take_csv(line, separator, field, cells);
    fields.emplace_back(field);
  }
  return fields;
}

std::unique_ptr<CellReader> make_csv(const model::ClickColumns& columns, const std::vector<std::string>& names, std::int64_t lookups,
                                     const Where& where) {
  return std::make_unique<Csv>(places_among(wanted_columns(columns), names, where), names.size(), columns_of_lists(columns, lookups),
                               columns.separator, columns.lists);
}

std::unique_ptr<CellReader> make_multislot(const model::ClickColumns& columns) {
  return std::make_unique<Multislot>(columns.names, places_among(wanted_columns(columns), columns.names, columns.where));
}

}  // namespace tessera::data
