#include <algorithm>
#include <functional>

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

// Calls with the cells of each row that the columns want; rows count from 1.
void read_rows(const std::filesystem::path& file, const model::ClickColumns& spec, const ClickShape& shape,
               const std::function<void(const Cells&, std::int64_t row)>& visit) {
  const std::vector<std::string> wanted = wanted_columns(spec);
  const std::vector<bool> lists = columns_of_lists(spec, shape.lookups);
  Cells cells(wanted.size());
  read_parquet(
      file, wanted,
      [&](std::span<const std::string_view> values, std::int64_t row, double) {
        cells.clear();
        for (std::size_t i = 0; i < wanted.size(); ++i) {
          if (lists[i])
            split_list(values[i], kParquetListSeparator, cells.at(i));
          else
            cells.at(i).push_back(values[i]);
        }
        visit(cells, row + 1);
      },
      ParquetValues::any);
}

std::int64_t rows_of(const std::filesystem::path& file) {
  std::int64_t rows = 0;
  read_parquet(file, {}, [&](std::span<const std::string_view>, std::int64_t row, double) { rows = row + 1; });
  return rows;
}

class ParquetLines final : public ClickLines {
 public:
  ParquetLines(const std::filesystem::path& file, const model::DataSpec& spec, const ClickShape& shape, const ColumnReader& columns)
      : keys_of_one_(shape.tables() * static_cast<std::size_t>(shape.lookups)),
        dense_of_one_(static_cast<std::size_t>(shape.dense)),
        history_of_one_(static_cast<std::size_t>(shape.history)) {
    LeftOutLines left_out(file, spec.records.on_error, "row");
    ClickSample sample(shape);
    const ClickRoom room = sample.room();
    read_rows(file, spec.columns, shape, [&](const Cells& cells, std::int64_t row) {
      if (const std::string problem = columns.read(cells, room); !problem.empty()) return left_out.add(row, problem);
      if (const std::string beyond = beyond_rows(room, shape); !beyond.empty())
        throw beyond_rows_error(beyond, in_file(file, static_cast<int>(row)));
      clicked_.push_back(room.label == 1);
      dense_.insert(dense_.end(), room.dense.begin(), room.dense.end());
      keys_.insert(keys_.end(), room.keys.begin(), room.keys.end());
      history_.insert(history_.end(), room.history.begin(), room.history.end());
    });
    note_ = left_out.note();
    if (clicked_.empty())
      throw Error(ErrorCode::invalid_config, file.string() + " has no rows", spec.sources.front().where, "a file with rows");
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
  const model::SourceSpec& source = spec.sources.front();
  const std::vector<SourceFile> files = open_log(source.path, "a Parquet file, or a folder of them", source.where);
  ColumnReader columns(spec.columns, shape);
  if (columns.needs_vocabularies()) {
    std::int64_t rows = 0;
    for (const SourceFile& file : files) rows += rows_of(file.path);
    auto left = static_cast<std::int64_t>(static_cast<double>(rows) * spec.train_fraction);
    std::vector<VocabularyBuilder> builders(columns.categories());
    for (const SourceFile& file : files)
      read_rows(file.path, spec.columns, shape, [&](const Cells& cells, std::int64_t) {
        if (--left >= 0) columns.count(cells, builders);
      });
    columns.set_vocabularies(builders);
  }
  std::vector<std::unique_ptr<ClickLines>> lines;
  for (const SourceFile& file : files) lines.push_back(std::make_unique<ParquetLines>(file.path, spec, shape, columns));
  return joined_lines(std::move(lines));
}

}  // namespace tessera::data
