#include <algorithm>

#include "base/file_system.hpp"
#include "base/hash.hpp"
#include "data/clicks/click_lines.hpp"
#include "data/clicks/columns.hpp"
#include "data/clicks/left_out.hpp"
#include "data/in_file.hpp"
#include "data/parquet.hpp"
#include "data/source.hpp"

namespace tessera::data {
namespace {

class ParquetLines final : public ClickLines {
 public:
  ParquetLines(const model::DataSpec& spec, const ClickShape& shape)
      : keys_of_one_(shape.tables() * static_cast<std::size_t>(shape.lookups)),
        dense_of_one_(static_cast<std::size_t>(shape.dense)),
        history_of_one_(static_cast<std::size_t>(shape.history)) {
    const model::SourceSpec& source = spec.sources.front();
    const std::filesystem::path file = open_source(source.path, {}, source.where).files.front().path;
    const std::vector<std::string> wanted = wanted_columns(spec.columns);
    const std::vector<bool> lists = columns_of_lists(spec.columns, shape.lookups);
    ColumnReader columns(spec.columns, shape);
    Cells cells(wanted.size());
    // Cells of a row; its number counts from 1.
    const auto visit = [&](const auto& work) {
      read_parquet(
          file, wanted,
          [&](std::span<const std::string_view> values, std::int64_t row, double share) {
            cells.clear();
            for (std::size_t i = 0; i < wanted.size(); ++i) {
              if (lists[i])
                split_list(values[i], kParquetListSeparator, cells.at(i));
              else
                cells.at(i).push_back(values[i]);
            }
            work(row + 1, share);
          },
          ParquetValues::any);
    };
    if (columns.needs_vocabularies()) {
      std::vector<VocabularyBuilder> builders(columns.categories());
      visit([&](std::int64_t, double share) {
        if (share < spec.train_fraction) columns.count(cells, builders);
      });
      columns.set_vocabularies(builders);
    }
    LeftOutLines left_out(file, spec.records.on_error, "row");
    ClickSample sample(shape);
    const ClickRoom room = sample.room();
    visit([&](std::int64_t row, double) {
      if (const std::string problem = columns.read(cells, room); !problem.empty()) return left_out.add(row, problem);
      if (const std::string beyond = beyond_rows(room, shape); !beyond.empty())
        throw beyond_rows_error(beyond, in_file(file, static_cast<int>(row)));
      clicked_.push_back(room.label == 1);
      dense_.insert(dense_.end(), room.dense.begin(), room.dense.end());
      keys_.insert(keys_.end(), room.keys.begin(), room.keys.end());
      history_.insert(history_.end(), room.history.begin(), room.history.end());
    });
    note_ = left_out.note();
    if (clicked_.empty()) throw Error(ErrorCode::invalid_config, file.string() + " has no rows", source.where, "a file with rows");
    const MappedFile map(file);
    source_hash_ = hash64(map.bytes());
    content_hash_ = seed_of(source_hash_, columns.vocabulary_hash());
  }

  std::int64_t size() const override { return std::ssize(clicked_); }
  void read(std::int64_t index, const ClickRoom& room) const override {
    const auto at = static_cast<std::size_t>(index);
    room.label = clicked_[at] ? 1 : 0;
    copy(dense_, at * dense_of_one_, room.dense);
    copy(keys_, at * keys_of_one_, room.keys);
    copy(history_, at * history_of_one_, room.history);
  }
  bool clicked(std::int64_t index) const override { return clicked_[static_cast<std::size_t>(index)]; }
  std::uint64_t content_hash() const override { return content_hash_; }
  std::uint64_t source_hash() const override { return source_hash_; }
  std::string note() const override { return note_; }

 private:
  template <typename Number>
  static void copy(const std::vector<Number>& from, std::size_t begin, std::span<Number> to) {
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(begin), to.size(), to.begin());
  }

  std::size_t keys_of_one_, dense_of_one_, history_of_one_;
  std::vector<bool> clicked_;
  std::vector<float> dense_;
  std::vector<std::uint64_t> keys_, history_;
  std::uint64_t source_hash_ = 0, content_hash_ = 0;
  std::string note_;
};

}  // namespace

std::unique_ptr<ClickLines> open_parquet_lines(const model::DataSpec& spec, const ClickShape& shape) {
  return std::make_unique<ParquetLines>(spec, shape);
}

}  // namespace tessera::data
