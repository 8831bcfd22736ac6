#include <algorithm>
#include <cmath>

#include "data/clicks/click_format.hpp"
#include "data/clicks/keys.hpp"
#include "data/clicks/line_fields.hpp"

namespace tessera::data {
namespace {

constexpr std::size_t kNumbers = 13;
constexpr std::size_t kCategories = 26;
constexpr std::size_t kDigits = 8;  // of a category

class Criteo final : public ClickFormat {
 public:
  std::string read(std::string_view line, const ClickRoom& room) const override {
    const auto tabs = static_cast<std::size_t>(std::count(line.begin(), line.end(), '\t'));
    if (tabs != kNumbers + kCategories) return text("it has ", tabs + 1, " fields, and not ", 1 + kNumbers + kCategories);
    const std::string_view label = take_field(line, '\t');
    if (label != "0" && label != "1") return text("its label is '", label, "', and not 0 or 1");
    room.label = label.front() - '0';
    for (std::size_t i = 0; i < kNumbers; ++i) {
      const std::string_view field = take_field(line, '\t');
      std::int64_t number = 0;
      if (!field.empty() && !is_number(field, number)) return text("its number ", i + 1, " is '", field, "'");
      if (!room.dense.empty()) room.dense[i] = std::log1p(static_cast<float>(std::max<std::int64_t>(0, number)));
    }
    for (std::size_t i = 0; i < kCategories; ++i) {
      const std::string_view field = take_field(line, '\t');
      std::uint32_t id = 0;
      if (!field.empty() && (field.size() > kDigits || !is_number(field, id, 16)))
        return text("its category ", i + 1, " is '", field, "', and not up to 8 hexadecimal digits");
      if (!room.keys.empty()) room.keys[i] = key_of(i, field.empty() ? kEmptyId : id);
    }
    return {};
  }
};

void expect(const model::ModelSpec& model, const char* dim, std::initializer_list<std::size_t> valid, const Where& where) {
  const auto found = static_cast<std::size_t>(model.dim(dim));
  if (std::find(valid.begin(), valid.end(), found) != valid.end()) return;
  throw Error(ErrorCode::invalid_config,
              text("lines of format criteo have 13 numbers and 26 categories, and model.", dim, " is ", found,
                   dim == std::string_view("tables") ? " tables" : ""),
              where, text("model.", dim, ": ", *valid.begin()));
}

}  // namespace

std::unique_ptr<ClickFormat> make_criteo(const model::ModelSpec& model, const Where& where) {
  expect(model, "tables", {kCategories}, where);
  expect(model, "lookups", {1}, where);
  expect(model, "dense", {kNumbers, 0}, where);
  return std::make_unique<Criteo>();
}

}  // namespace tessera::data
