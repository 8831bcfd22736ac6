// The module that reads Parquet; see data/parquet.hpp.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <charconv>
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
  bool is_readable() const {
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

// What one row of any column says, as text.
class AnyColumn {
 public:
  explicit AnyColumn(std::shared_ptr<arrow::Array> array) : array_(std::move(array)) {}
  bool is_readable() const { return is_readable(*array_->type()); }
  std::string type() const { return array_->type()->ToString(); }
  // Valid until the next call.
  std::string_view at(std::int64_t row) {
    text_.clear();
    write(*array_, row);
    return text_;
  }

 private:
  static bool is_readable(const arrow::DataType& type) {
    switch (type.id()) {
      case arrow::Type::DICTIONARY: return is_readable(*static_cast<const arrow::DictionaryType&>(type).value_type());
      case arrow::Type::LIST:
      case arrow::Type::LARGE_LIST:
      case arrow::Type::FIXED_SIZE_LIST: {
        const arrow::DataType& value = *type.field(0)->type();
        return is_readable(value) && value.num_fields() == 0;
      }
      case arrow::Type::STRING:
      case arrow::Type::LARGE_STRING:
      case arrow::Type::STRING_VIEW:
      case arrow::Type::BOOL:
      case arrow::Type::FLOAT:
      case arrow::Type::DOUBLE: return true;
      default: return arrow::is_integer(type.id());
    }
  }
  template <typename Array>
  void write_number(const arrow::Array& array, std::int64_t row) {
    char digits[32];
    const auto end = std::to_chars(digits, digits + sizeof digits, static_cast<const Array&>(array).Value(row)).ptr;
    text_.append(digits, end);
  }
  template <typename Array>
  void write_list(const arrow::Array& array, std::int64_t row) {
    const auto& list = static_cast<const Array&>(array);
    const std::int64_t begin = list.value_offset(row), end = begin + list.value_length(row);
    for (std::int64_t i = begin; i < end; ++i) {
      if (i > begin) text_ += kParquetListSeparator;
      write(*list.values(), i);
    }
  }
  void write(const arrow::Array& array, std::int64_t row) {
    if (array.IsNull(row)) return;
    switch (array.type_id()) {
      case arrow::Type::DICTIONARY: {
        const auto& coded = static_cast<const arrow::DictionaryArray&>(array);
        return write(*coded.dictionary(), coded.GetValueIndex(row));
      }
      case arrow::Type::LIST: return write_list<arrow::ListArray>(array, row);
      case arrow::Type::LARGE_LIST: return write_list<arrow::LargeListArray>(array, row);
      case arrow::Type::FIXED_SIZE_LIST: return write_list<arrow::FixedSizeListArray>(array, row);
      case arrow::Type::STRING: text_ += static_cast<const arrow::StringArray&>(array).GetView(row); return;
      case arrow::Type::LARGE_STRING: text_ += static_cast<const arrow::LargeStringArray&>(array).GetView(row); return;
      case arrow::Type::STRING_VIEW: text_ += static_cast<const arrow::StringViewArray&>(array).GetView(row); return;
      case arrow::Type::BOOL: text_ += static_cast<const arrow::BooleanArray&>(array).Value(row) ? '1' : '0'; return;
      case arrow::Type::FLOAT: return write_number<arrow::FloatArray>(array, row);
      case arrow::Type::DOUBLE: return write_number<arrow::DoubleArray>(array, row);
      case arrow::Type::INT8: return write_number<arrow::Int8Array>(array, row);
      case arrow::Type::INT16: return write_number<arrow::Int16Array>(array, row);
      case arrow::Type::INT32: return write_number<arrow::Int32Array>(array, row);
      case arrow::Type::INT64: return write_number<arrow::Int64Array>(array, row);
      case arrow::Type::UINT8: return write_number<arrow::UInt8Array>(array, row);
      case arrow::Type::UINT16: return write_number<arrow::UInt16Array>(array, row);
      case arrow::Type::UINT32: return write_number<arrow::UInt32Array>(array, row);
      default: return write_number<arrow::UInt64Array>(array, row);
    }
  }

  std::shared_ptr<arrow::Array> array_;
  std::string text_;
};

// Of a column, which may be a list, the place of its first leaf; below 0: there is none.
int place_of(const std::string& column, const parquet::SchemaDescriptor& schema, ParquetValues values) {
  if (values == ParquetValues::text) return schema.ColumnIndex(column);
  for (int i = 0; i < schema.num_columns(); ++i)
    if (schema.Column(i)->path()->ToDotVector().front() == column) return i;
  return -1;
}

// Where the wanted columns stand in the file; Parquet counts the leaves of nested columns.
std::optional<std::vector<int>> places_of(const std::vector<std::string>& columns, const parquet::FileMetaData& metadata,
                                          ParquetValues values, ParquetProblem& problem) {
  std::vector<int> places;
  for (const std::string& column : columns) {
    const int place = place_of(column, *metadata.schema(), values);
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

// Visits the rows of a batch whose first one has the number `row`. Returns whether all its columns can be read.
template <typename Column>
bool visit_rows(const arrow::RecordBatch& batch, const std::vector<std::string>& columns, const parquet::FileMetaData& metadata,
                std::int64_t row, const ParquetVisitor& visit, ParquetProblem& problem) {
  std::vector<Column> readers;
  for (const std::string& column : columns) {
    const auto array = batch.GetColumnByName(column);
    if (array != nullptr) readers.emplace_back(array);
    if (array != nullptr && readers.back().is_readable()) continue;
    problem = {Kind::no_text, array != nullptr ? readers.back().type() : "parts of a nested column", column};
    return false;
  }
  std::vector<std::string_view> values(columns.size());
  for (std::int64_t i = 0; i < batch.num_rows(); ++i, ++row) {
    for (std::size_t c = 0; c < columns.size(); ++c) values[c] = readers[c].at(i);
    visit(values, row, static_cast<double>(row) / static_cast<double>(metadata.num_rows()));
  }
  return true;
}

arrow::Status read(const std::filesystem::path& file, const std::vector<std::string>& columns, ParquetValues kind,
                   const ParquetVisitor& visit, ParquetProblem& problem) {
  ARROW_ASSIGN_OR_RAISE(auto bytes, arrow::io::ReadableFile::Open(file.string()));
  parquet::arrow::FileReaderBuilder builder;
  ARROW_RETURN_NOT_OK(builder.Open(bytes));
  parquet::ArrowReaderProperties properties;
  properties.set_batch_size(kRowsAtOnce);
  ARROW_ASSIGN_OR_RAISE(const auto reader, builder.properties(properties)->Build());
  const auto metadata = reader->parquet_reader()->metadata();
  const auto places = places_of(columns, *metadata, kind, problem);
  if (!places) return arrow::Status::OK();
  std::vector<int> groups(static_cast<std::size_t>(metadata->num_row_groups()));
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
  ARROW_ASSIGN_OR_RAISE(const auto batches, reader->GetRecordBatchReader(groups, *places));
  std::int64_t row = 0;
  for (;;) {
    ARROW_ASSIGN_OR_RAISE(const auto batch, batches->Next());
    if (batch == nullptr) return arrow::Status::OK();
    const bool go_on = kind == ParquetValues::text ? visit_rows<TextColumn>(*batch, columns, *metadata, row, visit, problem)
                                                   : visit_rows<AnyColumn>(*batch, columns, *metadata, row, visit, problem);
    if (!go_on) return arrow::Status::OK();
    row += batch->num_rows();
  }
}

}  // namespace
}  // namespace tessera::data

extern "C" __attribute__((visibility("default"))) void tessera_read_parquet(const std::filesystem::path& file,
                                                                            const std::vector<std::string>& columns,
                                                                            tessera::data::ParquetValues values,
                                                                            const tessera::data::ParquetVisitor& visit,
                                                                            tessera::data::ParquetProblem& problem) {
  try {
    const arrow::Status status = tessera::data::read(file, columns, values, visit, problem);
    if (!status.ok()) problem = {tessera::data::Kind::unreadable, status.message(), {}};
  } catch (const parquet::ParquetException& error) {
    problem = {tessera::data::Kind::unreadable, error.what(), {}};
  }
}
