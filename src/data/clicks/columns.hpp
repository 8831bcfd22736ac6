// internal: samples of formats with named columns.
#pragma once

#include <memory>
#include <optional>

#include "data/clicks/cells.hpp"
#include "data/clicks/click_format.hpp"
#include "data/clicks/vocabulary.hpp"

namespace tessera::data {

// From the cells of a line to a sample. Immutable once its vocabularies are there; safe to use from several threads.
class ColumnReader {
 public:
  // Reads the vocabularies that have files. Throws as Vocabulary::load does.
  ColumnReader(const model::ClickColumns& columns, const ClickShape& shape);

  // Returns what is wrong with the cells, by the name of their column; empty: nothing. A label is 0 or 1. A number that is not there is 0.
  // Of a category's values the first `lookups` find a row, and more are wrong; a category of one look-up without a value has kEmptyId. Of a
  // history's keys the last ones count, and empty ones are no keys.
  std::string read(const Cells& cells, const ClickRoom& room) const;

  // Vocabularies that are made of the log itself: which columns they are of, and what to set them to.
  bool needs_vocabularies() const;
  void count(const Cells& cells, std::vector<VocabularyBuilder>& builders) const;
  void set_vocabularies(const std::vector<VocabularyBuilder>& builders);
  std::size_t categories() const { return columns_.categories.size(); }
  std::uint64_t vocabulary_hash() const;

 private:
  bool made_of_log(std::size_t category) const;
  std::optional<std::uint64_t> id_of(std::size_t category, std::string_view value) const;

  model::ClickColumns columns_;
  ClickShape shape_;
  std::vector<std::optional<Vocabulary>> vocabularies_;  // of each category
};

// Both in one, for lines of text.
std::unique_ptr<ClickFormat> make_column_format(std::shared_ptr<const CellReader> cells, std::shared_ptr<const ColumnReader> columns,
                                                std::size_t wanted);

}  // namespace tessera::data
