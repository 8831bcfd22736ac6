#include "data/clicks/columns.hpp"

#include <algorithm>
#include <cmath>

#include "base/hash.hpp"
#include "data/clicks/keys.hpp"
#include "data/clicks/line_fields.hpp"
#include "data/scratch_pool.hpp"

namespace tessera::data {
namespace {

using Ids = model::CategoryColumn::Ids;

class ColumnFormat final : public ClickFormat {
 public:
  ColumnFormat(std::shared_ptr<const CellReader> cells, std::shared_ptr<const ColumnReader> columns, std::size_t wanted)
      : cells_(std::move(cells)), columns_(std::move(columns)), wanted_(wanted) {}
  std::string read(std::string_view line, const ClickRoom& room) const override {
    const auto lease = scratch_.take([&] { return std::make_unique<Cells>(wanted_); });
    Cells& cells = *lease;
    cells.clear();
    const std::string problem = cells_->read(line, cells);
    return problem.empty() ? columns_->read(cells, room) : problem;
  }

 private:
  mutable ScratchPool<Cells> scratch_;
  std::shared_ptr<const CellReader> cells_;
  std::shared_ptr<const ColumnReader> columns_;
  std::size_t wanted_;
};

}  // namespace

ColumnReader::ColumnReader(const model::ClickColumns& columns, const ClickShape& shape)
    : columns_(columns), shape_(shape), vocabularies_(columns.categories.size()) {
  for (std::size_t i = 0; i < columns_.categories.size(); ++i)
    if (columns_.categories[i].ids == Ids::vocabulary && !made_of_log(i)) vocabularies_[i] = Vocabulary::load(columns_.categories[i].file);
}

bool ColumnReader::made_of_log(std::size_t category) const {
  return columns_.categories[category].ids == Ids::vocabulary && columns_.categories[category].file.empty();
}

bool ColumnReader::needs_vocabularies() const {
  for (std::size_t i = 0; i < categories(); ++i)
    if (made_of_log(i)) return true;
  return false;
}

void ColumnReader::count(const Cells& cells, std::vector<VocabularyBuilder>& builders) const {
  const std::size_t first = 1 + columns_.dense.size();
  for (std::size_t i = 0; i < categories(); ++i) {
    if (!made_of_log(i)) continue;
    for (const std::string_view value : cells.at(first + i))
      if (!value.empty()) builders[i].add(value);
    if (i == shape_.target && !columns_.history.empty())
      for (const std::string_view value : cells.at(first + categories()))
        if (!value.empty()) builders[i].add(value);
  }
}

void ColumnReader::set_vocabularies(const std::vector<VocabularyBuilder>& builders) {
  for (std::size_t i = 0; i < categories(); ++i)
    if (made_of_log(i)) vocabularies_[i] = builders[i].build(columns_.categories[i].least);
}

std::uint64_t ColumnReader::vocabulary_hash() const {
  std::uint64_t hash = 0;
  for (const auto& vocabulary : vocabularies_)
    if (vocabulary) hash = seed_of(hash, vocabulary->hash());
  return hash;
}

std::optional<std::uint64_t> ColumnReader::id_of(std::size_t category, std::string_view value) const {
  const std::int64_t rows = shape_.rows[category];
  switch (columns_.categories[category].ids) {
    case Ids::vocabulary: return vocabularies_[category]->id_of(value);
    case Ids::hash: return hash64(value) % (rows > 0 ? static_cast<std::uint64_t>(rows) : kEmptyId);
    case Ids::number: break;
  }
  std::uint64_t id = 0;
  if (!is_number(value, id)) return std::nullopt;
  // A 64-bit signature of a feature: what is hashed is hashed once more.
  return id < kEmptyId ? id : hash64(value) % kEmptyId;
}

std::string ColumnReader::read(const Cells& cells, const ClickRoom& room) const {
  const auto wrong = [](const std::string& column, std::string_view value, const char* expected) {
    return text("its column '", column, "' is '", value, "', and not ", expected);
  };
  const auto& labels = cells.at(0);
  float label = -1;
  if (labels.size() != 1) return text("its column '", columns_.label, "' has ", labels.size(), " values, and not one");
  if (!is_number(labels[0], label) || (label != 0 && label != 1)) return wrong(columns_.label, labels[0], "0 or 1");
  room.label = label == 1 ? 1 : 0;

  std::size_t column = 1;
  std::size_t numbers = 0;
  const auto expected = static_cast<std::size_t>(shape_.dense);
  for (const std::string& name : columns_.dense) {
    for (const std::string_view value : cells.at(column)) {
      float number = 0;
      if (!value.empty() && (!is_number(value, number) || !std::isfinite(number))) return wrong(name, value, "a number");
      if (numbers < room.dense.size()) room.dense[numbers] = number;
      ++numbers;
    }
    ++column;
  }
  if (numbers != expected) return text("it has ", numbers, " numbers, and model.dense is ", expected);

  const auto lookups = static_cast<std::size_t>(shape_.lookups);
  std::fill(room.keys.begin(), room.keys.end(), kNoKey);
  for (std::size_t i = 0; i < categories(); ++i, ++column) {
    const auto& values = cells.at(column);
    const std::string& name = columns_.categories[i].name;
    if (values.size() > lookups) return text("its column '", name, "' has ", values.size(), " values, and model.lookups is ", lookups);
    for (std::size_t k = 0; k < std::max<std::size_t>(values.size(), lookups == 1 ? 1 : 0); ++k) {
      const std::string_view value = k < values.size() ? values[k] : std::string_view();
      const auto id = value.empty() ? std::optional(kEmptyId) : id_of(i, value);
      if (!id) return wrong(name, value, "a whole number");
      if (!room.keys.empty()) room.keys[i * lookups + k] = key_of(i, *id);
    }
  }
  if (columns_.history.empty()) return {};
  std::fill(room.history.begin(), room.history.end(), kNoKey);
  const auto& values = cells.at(column);
  const auto most = static_cast<std::size_t>(shape_.history);
  std::size_t place = 0;
  for (std::size_t k = values.size() > most ? values.size() - most : 0; k < values.size(); ++k) {
    if (values[k].empty()) continue;
    const auto id = id_of(shape_.target, values[k]);
    if (!id) return wrong(columns_.history, values[k], "whole numbers");
    if (!room.history.empty()) room.history[place] = key_of(shape_.target, *id);
    ++place;
  }
  return {};
}

std::unique_ptr<ClickFormat> make_column_format(std::shared_ptr<const CellReader> cells, std::shared_ptr<const ColumnReader> columns,
                                                std::size_t wanted) {
  return std::make_unique<ColumnFormat>(std::move(cells), std::move(columns), wanted);
}

}  // namespace tessera::data
