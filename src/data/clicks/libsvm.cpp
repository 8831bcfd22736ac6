#include <algorithm>
#include <cmath>

#include "data/clicks/click_format.hpp"
#include "data/clicks/keys.hpp"
#include "data/clicks/line_fields.hpp"

namespace tessera::data {
namespace {

class Libsvm final : public ClickFormat {
 public:
  Libsvm(std::size_t dense, std::size_t tables, std::size_t lookups) : dense_(dense), tables_(tables), lookups_(lookups) {}

  std::string read(std::string_view line, const ClickRoom& room) const override {
    const std::string_view label = take_field(line, ' ');
    if (label != "0" && label != "1" && label != "+1" && label != "-1") return text("its label is '", label, "', and not 0 or 1");
    room.label = label.back() == '1' && label.front() != '-' ? 1 : 0;
    std::fill(room.dense.begin(), room.dense.end(), 0.0f);
    std::fill(room.keys.begin(), room.keys.end(), kNoKey);
    std::size_t categories = 0;
    while (!line.empty()) {
      const std::string_view pair = take_field(line, ' ');
      if (pair.empty()) continue;
      const std::size_t colon = pair.find(':');
      std::uint64_t index = 0;
      float value = 0;
      if (colon == std::string_view::npos || !is_number(pair.substr(0, colon), index) || !is_number(pair.substr(colon + 1), value) ||
          !std::isfinite(value) || index >= kEmptyId)
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

}  // namespace

std::unique_ptr<ClickFormat> make_libsvm(const model::ModelSpec& model) {
  const auto extent = [&](const char* dim) { return static_cast<std::size_t>(model.dim(dim)); };
  return std::make_unique<Libsvm>(extent("dense"), extent("tables"), extent("lookups"));
}

}  // namespace tessera::data
