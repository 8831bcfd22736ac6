#include <algorithm>
#include <future>
#include <span>
#include <thread>

#include "base/hash.hpp"
#include "data/clicks/click_file.hpp"
#include "data/clicks/click_lines.hpp"
#include "data/clicks/columns.hpp"
#include "data/clicks/line_fields.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

class TextLines final : public ClickLines {
 public:
  TextLines(std::shared_ptr<const ClickFormat> format, ClickFile file, std::uint64_t ids)
      : format_(std::move(format)), file_(std::move(file)), ids_(ids) {}
  std::int64_t size() const override { return file_.size(); }
  void read(std::int64_t index, const ClickRoom& room) const override {
    const std::string problem = format_->read(file_.line(index), room);
    if (!problem.empty()) throw Error(ErrorCode::corrupt, text("a line of the click log has changed since it was first read: ", problem));
  }
  bool clicked(std::int64_t index) const override { return file_.clicked(index); }
  std::uint64_t content_hash() const override { return ids_ == 0 ? source_hash() : seed_of(source_hash(), ids_); }
  std::uint64_t source_hash() const override { return file_.content_hash(); }
  std::string note() const override { return file_.note(); }

 private:
  std::shared_ptr<const ClickFormat> format_;
  ClickFile file_;
  std::uint64_t ids_;  // of vocabularies; 0: there are none
};

// As many as pay for themselves.
int threads_for(std::size_t bytes) {
  constexpr std::size_t kLeast = 4 << 20;
  constexpr unsigned kMost = 8;
  return static_cast<int>(std::clamp<std::size_t>(bytes / kLeast, 1, std::clamp(std::thread::hardware_concurrency(), 1u, kMost)));
}

std::string_view without_return(std::string_view line) { return line.substr(0, line.size() - (line.ends_with('\r') ? 1 : 0)); }

std::int64_t count_lines(std::string_view content) { return std::count(content.begin(), content.end(), '\n'); }

// Up to `left` lines, which it is less by.
std::string_view first_lines(std::string_view content, std::int64_t& left) {
  std::size_t end = 0;
  for (; left > 0 && end < content.size(); --left) end = std::min(content.find('\n', end), content.size() - 1) + 1;
  return content.substr(0, end);
}

// Counts in what stands in lines that can be read.
void count_values(std::string_view content, const CellReader& reader, const ColumnReader& columns, std::size_t wanted,
                  std::vector<VocabularyBuilder>& all) {
  const int threads = threads_for(content.size());
  std::vector<std::future<std::vector<VocabularyBuilder>>> counts;
  const std::size_t piece = content.size() / static_cast<std::size_t>(threads) + 1;
  while (!content.empty()) {
    const std::size_t end = std::min(content.find('\n', std::min(piece, content.size()) - 1), content.size() - 1) + 1;
    counts.push_back(std::async(std::launch::async, [&reader, &columns, wanted, lines = content.substr(0, end)]() mutable {
      std::vector<VocabularyBuilder> builders(columns.categories());
      Cells cells(wanted);
      while (!lines.empty()) {
        cells.clear();
        if (reader.read(without_return(take_field(lines, '\n')), cells).empty()) columns.count(cells, builders);
      }
      return builders;
    }));
    content.remove_prefix(end);
  }
  for (auto& count : counts) {
    const std::vector<VocabularyBuilder> builders = count.get();
    for (std::size_t i = 0; i < all.size(); ++i) all[i].add(builders[i]);
  }
}

std::vector<std::string> header_of(const ClickText& source, char separator) {
  std::string_view content = source.content();
  if (content.starts_with("\xEF\xBB\xBF")) content.remove_prefix(3);
  return csv_fields(without_return(take_field(content, '\n')), separator);
}

// Of all files, which have the same one.
std::vector<std::string> common_header(std::span<const ClickText> files, char separator) {
  std::vector<std::string> names = header_of(files.front(), separator);
  for (const ClickText& file : files.subspan(1))
    if (header_of(file, separator) != names)
      throw Error(ErrorCode::invalid_config, "its first line does not name the columns that the first file's names",
                  in_file(file.path(), 1), text("the first line of ", files.front().path().string()),
                  "say data.columns.names where files have no such line, and leave out files of other logs");
  return names;
}

}  // namespace

std::unique_ptr<ClickLines> open_text_lines(const model::DataSpec& spec, const model::ModelSpec& model, const ClickShape& shape) {
  const model::SourceSpec& source = spec.sources.front();
  std::vector<ClickText> files;
  for (const SourceFile& file : open_log(source.path, "a click log, also as .gz or .zst, or a folder of its parts", source.where))
    files.emplace_back(file);
  const auto index = [&](std::shared_ptr<const ClickFormat> format, bool header, std::uint64_t ids) {
    std::vector<std::unique_ptr<ClickLines>> lines;
    for (ClickText& file : files) {
      const int threads = threads_for(file.content().size());
      ClickFile checked(std::move(file), *format, shape, spec.records.on_error, header, threads, source.where);
      lines.push_back(std::make_unique<TextLines>(format, std::move(checked), ids));
    }
    return joined_lines(std::move(lines));
  };
  if (!model::names_columns(*spec.format)) return index(make_click_format(*spec.format, model, spec.where), false, 0);

  const bool csv = *spec.format == model::ClickFormat::csv;
  const bool header = csv && spec.columns.names.empty();
  std::shared_ptr<const CellReader> cells;
  if (csv)
    cells = make_csv(spec.columns, header ? common_header(files, spec.columns.separator) : spec.columns.names, shape.lookups,
                     spec.columns.where);
  else
    cells = make_multislot(spec.columns);
  const std::size_t wanted = wanted_columns(spec.columns).size();
  const auto columns = std::make_shared<ColumnReader>(spec.columns, shape);
  if (columns->needs_vocabularies()) {
    std::vector<std::string_view> contents;
    std::int64_t lines = 0;
    for (const ClickText& file : files) {
      std::string_view& content = contents.emplace_back(file.content());
      if (header) take_field(content, '\n');
      lines += count_lines(content);
    }
    auto left = static_cast<std::int64_t>(static_cast<double>(lines) * spec.train_fraction);
    std::vector<VocabularyBuilder> values(columns->categories());
    for (const std::string_view content : contents) count_values(first_lines(content, left), *cells, *columns, wanted, values);
    columns->set_vocabularies(values);
  }
  return index(make_column_format(cells, columns, wanted), header, columns->vocabulary_hash());
}

}  // namespace tessera::data
