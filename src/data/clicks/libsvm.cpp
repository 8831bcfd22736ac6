#include <algorithm>
#include <cmath>

#include "data/clicks/click_format.hpp"
#include "data/clicks/keys.hpp"
#include "data/clicks/line_fields.hpp"

namespace tessera::data {
namespace {

// Takes the label off the line. Returns what is wrong with it; empty: nothing.
std::string take_label(std::string_view& line, std::int32_t& label) {
  const std::string_view field = take_field(line, ' ');
  if (field != "0" && field != "1" && field != "+1" && field != "-1") return text("its label is '", field, "', and not 0 or 1");
  label = field.back() == '1' && field.front() != '-' ? 1 : 0;
  return {};
}

void clear(const ClickRoom& room) {
  std::fill(room.dense.begin(), room.dense.end(), 0.0f);
  std::fill(room.keys.begin(), room.keys.end(), kNoKey);
}

bool is_value(std::string_view field, float& value) { return is_number(field, value) && std::isfinite(value); }

class Libsvm final : public ClickFormat {
 public:
  Libsvm(std::size_t dense, std::size_t tables, std::size_t lookups) : dense_(dense), tables_(tables), lookups_(lookups) {}

  std::string read(std::string_view line, const ClickRoom& room) const override {
    if (std::string problem = take_label(line, room.label); !problem.empty()) return problem;
    clear(room);
    std::size_t categories = 0;
    while (!line.empty()) {
      const std::string_view pair = take_field(line, ' ');
      if (pair.empty()) continue;
      const std::size_t colon = pair.find(':');
      std::uint64_t index = 0;
      float value = 0;
      if (colon == std::string_view::npos || !is_number(pair.substr(0, colon), index) || !is_value(pair.substr(colon + 1), value) ||
          index >= kEmptyId)
        return text("'", pair, "' is no INDEX:VALUE");
      if (index >= 1 && index <= dense_) {
        if (!room.dense.empty()) room.dense[index - 1] = value;
        continue;
      }
      if (value != 1) return text("category ", index, " has the value ", value, ", and not 1");
      if (categories == tables_ * lookups_) return text("it has more than ", categories, " categories");
      if (!room.keys.empty()) room.keys[categories] = key_of(categories / lookups_, index);
      ++categories;
    }
    return {};
  }

 private:
  std::size_t dense_, tables_, lookups_;
};

class Libffm final : public ClickFormat {
 public:
  Libffm(std::size_t dense, std::size_t tables, std::size_t lookups) : dense_(dense), tables_(tables), lookups_(lookups) {}

  std::string read(std::string_view line, const ClickRoom& room) const override {
    if (std::string problem = take_label(line, room.label); !problem.empty()) return problem;
    clear(room);
    std::vector<std::size_t> seen(tables_);  // ids of each table
    while (!line.empty()) {
      const std::string_view triple = take_field(line, ' ');
      if (triple.empty()) continue;
      std::string_view rest = triple;
      std::uint64_t field = 0, index = 0;
      float value = 0;
      if (std::count(triple.begin(), triple.end(), ':') != 2 || !is_number(take_field(rest, ':'), field) ||
          !is_number(take_field(rest, ':'), index) || !is_value(rest, value) || index >= kEmptyId)
        return text("'", triple, "' is no FIELD:INDEX:VALUE");
      if (field < dense_) {
        if (!room.dense.empty()) room.dense[field] = value;
        continue;
      }
      const std::uint64_t table = field - dense_;
      if (table >= tables_)
        return text("it has a field ", field, ", and model.dense and model.tables say fields 0 to ", dense_ + tables_ - 1);
      if (seen[table] == lookups_)
        return text("field ", field, " has more than ", lookups_, lookups_ == 1 ? " id" : " ids", ", the model's lookups");
      if (!room.keys.empty()) room.keys[table * lookups_ + seen[table]] = key_of(table, index);
      ++seen[table];
    }
    return {};
  }

 private:
  std::size_t dense_, tables_, lookups_;
};

template <typename Format>
std::unique_ptr<ClickFormat> made_for(const model::ModelSpec& model) {
  const auto extent = [&](const char* dim) { return static_cast<std::size_t>(model.dim(dim)); };
  return std::make_unique<Format>(extent("dense"), extent("tables"), extent("lookups"));
}

}  // namespace

std::unique_ptr<ClickFormat> make_libsvm(const model::ModelSpec& model) { return made_for<Libsvm>(model); }
std::unique_ptr<ClickFormat> make_libffm(const model::ModelSpec& model) { return made_for<Libffm>(model); }

}  // namespace tessera::data
