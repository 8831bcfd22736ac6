// The module that reads Parquet; see data/parquet.hpp.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <memory>
#include <optional>

#include "data/parquet.hpp"

namespace tessera::data {
namespace {

using Kind = ParquetProblem::Kind;

constexpr std::int64_t kRowsAtOnce = 1024;

// What one row of a column says: text columns come in several encodings.
class TextColumn {
 public:
  explicit TextColumn(std::shared_ptr<arrow::Array> array) : array_(std::move(array)) {
    if (array_->type_id() == arrow::Type::DICTIONARY) {
      rows_ = static_cast<const arrow::DictionaryArray*>(array_.get());
      words_ = rows_->dictionary();
    } else {
      words_ = array_;
    }
  }
  bool is_text() const {
    const arrow::Type::type type = words_->type_id();
    return type == arrow::Type::STRING || type == arrow::Type::LARGE_STRING || type == arrow::Type::STRING_VIEW;
  }
  std::string type() const { return words_->type()->ToString(); }
  std::string_view at(std::int64_t row) const {
    if (array_->IsNull(row)) return {};
    const std::int64_t word = rows_ != nullptr ? rows_->GetValueIndex(row) : row;
    if (words_->IsNull(word)) return {};
    switch (words_->type_id()) {
      case arrow::Type::LARGE_STRING: return static_cast<const arrow::LargeStringArray&>(*words_).GetView(word);
      case arrow::Type::STRING_VIEW: return static_cast<const arrow::StringViewArray&>(*words_).GetView(word);
      default: return static_cast<const arrow::StringArray&>(*words_).GetView(word);
    }
  }

 private:
  std::shared_ptr<arrow::Array> array_;
  const arrow::DictionaryArray* rows_ = nullptr;
  std::shared_ptr<arrow::Array> words_;
};

// Where the wanted columns stand in the file; Parquet counts the leaves of nested columns.
std::optional<std::vector<int>> places_of(const std::vector<std::string>& columns, const parquet::FileMetaData& metadata,
                                          ParquetProblem& problem) {
  std::vector<int> places;
  for (const std::string& column : columns) {
    const int place = metadata.schema()->ColumnIndex(column);
    if (place < 0) {
      problem = {Kind::no_column, {}, column};
      for (int i = 0; i < metadata.schema()->num_columns(); ++i)
        problem.known.push_back(metadata.schema()->Column(i)->path()->ToDotString());
      return std::nullopt;
    }
    places.push_back(place);
  }
  return places;
}

arrow::Status read(const std::filesystem::path& file, const std::vector<std::string>& columns, const ParquetVisitor& visit,
                   ParquetProblem& problem) {
  ARROW_ASSIGN_OR_RAISE(auto bytes, arrow::io::ReadableFile::Open(file.string()));
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.Open(bytes));
  parquet::ArrowReaderProperties properties;
  properties.set_batch_size(kRowsAtOnce);
  ARROW_ASSIGN_OR_RAISE(const auto reader, builder.properties(properties)->Build());
  const auto metadata = reader->parquet_reader()->metadata();
  const auto places = places_of(columns, *metadata, problem);
  if (!places) return arrow::Status::OK();
  std::vector<int> groups(static_cast<std::size_t>(metadata->num_row_groups()));
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
  ARROW_ASSIGN_OR_RAISE(const auto batches, reader->GetRecordBatchReader(groups, *places));
  std::vector<std::string_view> values(columns.size());
  std::int64_t row = 0;
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
    if (batch == nullptr) return arrow::Status::OK();
    std::vector<TextColumn> texts;
    for (const std::string& column : columns) {
      const auto array = batch->GetColumnByName(column);
      if (array != nullptr) texts.emplace_back(array);
      if (array != nullptr && texts.back().is_text()) continue;
      problem = {Kind::no_text, array != nullptr ? texts.back().type() : "parts of a nested column", column};
      return arrow::Status::OK();
    }
    for (std::int64_t i = 0; i < batch->num_rows(); ++i, ++row) {
      for (std::size_t c = 0; c < columns.size(); ++c) values[c] = texts[c].at(i);
      visit(values, row, static_cast<double>(row) / static_cast<double>(metadata->num_rows()));
    }
  }
}

}  // namespace
}  // namespace tessera::data

extern "C" __attribute__((visibility("default"))) void tessera_read_parquet(const std::filesystem::path& file,
                                                                            const std::vector<std::string>& columns,
                                                                            const tessera::data::ParquetVisitor& visit,
                                                                            tessera::data::ParquetProblem& problem) {
  try {
    const arrow::Status status = tessera::data::read(file, columns, visit, problem);
    if (!status.ok()) problem = {tessera::data::Kind::unreadable, status.message(), {}};
  } catch (const parquet::ParquetException& error) {
    problem = {tessera::data::Kind::unreadable, error.what(), {}};
  }
}
