#include <algorithm>
#include <future>
#include <thread>

#include "base/hash.hpp"
#include "data/clicks/click_file.hpp"
#include "data/clicks/click_lines.hpp"
#include "data/clicks/columns.hpp"
#include "data/clicks/line_fields.hpp"

namespace tessera::data {
namespace {

class TextLines final : public ClickLines {
 public:
  TextLines(std::unique_ptr<ClickFormat> format, ClickFile file, std::uint64_t ids)
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
  std::unique_ptr<ClickFormat> format_;
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

// The first `share` of the lines.
std::string_view first_lines(std::string_view content, double share) {
  const auto lines = static_cast<double>(std::count(content.begin(), content.end(), '\n'));
  std::size_t end = 0;
  for (auto left = static_cast<std::int64_t>(lines * share); left > 0; --left) end = content.find('\n', end) + 1;
  return content.substr(0, end);
}

// Counts what stands in lines that can be read.
std::vector<VocabularyBuilder> count_values(std::string_view content, const CellReader& reader, const ColumnReader& columns,
                                            std::size_t wanted, int threads) {
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
  std::vector<VocabularyBuilder> all(columns.categories());
  for (auto& count : counts) {
    const std::vector<VocabularyBuilder> builders = count.get();
    for (std::size_t i = 0; i < all.size(); ++i) all[i].add(builders[i]);
  }
  return all;
}

std::vector<std::string> header_of(const ClickText& source, char separator) {
  std::string_view content = source.content();
  if (content.starts_with("\xEF\xBB\xBF")) content.remove_prefix(3);
  return csv_fields(without_return(take_field(content, '\n')), separator);
}

}  // namespace

std::unique_ptr<ClickLines> open_text_lines(const model::DataSpec& spec, const model::ModelSpec& model, const ClickShape& shape) {
  const model::SourceSpec& source = spec.sources.front();
  ClickText file(open_source(source.path, {}, source.where).files.front());
  const int threads = threads_for(file.content().size());
  const auto index = [&](std::unique_ptr<ClickFormat> format, bool header, std::uint64_t ids) {
    ClickFile lines(std::move(file), *format, shape, spec.records.on_error, header, threads, source.where);
    return std::make_unique<TextLines>(std::move(format), std::move(lines), ids);
  };
  if (*spec.format == model::ClickFormat::criteo || *spec.format == model::ClickFormat::libsvm)
    return index(make_click_format(*spec.format, model, spec.where), false, 0);

  const bool csv = *spec.format == model::ClickFormat::csv;
  const bool header = csv && spec.columns.names.empty();
  std::shared_ptr<const CellReader> cells;
  if (csv)
    cells =
        make_csv(spec.columns, header ? header_of(file, spec.columns.separator) : spec.columns.names, shape.lookups, spec.columns.where);
  else
    cells = make_multislot(spec.columns);
  const std::size_t wanted = wanted_columns(spec.columns).size();
  const auto columns = std::make_shared<ColumnReader>(spec.columns, shape);
  if (columns->needs_vocabularies()) {
    std::string_view content = file.content();
    if (header) take_field(content, '\n');
    columns->set_vocabularies(count_values(first_lines(content, spec.train_fraction), *cells, *columns, wanted, threads));
  }
  return index(make_column_format(cells, columns, wanted), header, columns->vocabulary_hash());
}

}  // namespace tessera::data
