// Documents out of the files of a source.
#include <simdjson.h>
#include <cstring>

#include "base/config.hpp"
#include "data/byte_stream.hpp"
#include "data/in_file.hpp"
#include "data/parquet.hpp"
#include "data/source.hpp"
#include "data/utf8.hpp"

namespace tessera::data {
namespace {

[[noreturn]] void binary(const SourceFile& file, const std::string& what, std::uint64_t offset, int line = 0) {
  throw Error(ErrorCode::invalid_config, text("this file is not text: ", what, " at byte ", offset), in_file(file.path, line), "UTF-8 text",
              "convert it with iconv, or take it out of the source");
}

void check_text(const SourceFile& file, std::string_view content, std::uint64_t begin, int line = 0) {
  if (const void* zero = content.empty() ? nullptr : std::memchr(content.data(), 0, content.size())) {
    binary(file, "a NUL byte", begin + static_cast<std::uint64_t>(static_cast<const char*>(zero) - content.data()), line);
  }
  if (const auto offset = first_invalid_utf8(content)) binary(file, "invalid UTF-8", begin + *offset, line);
}

std::string_view without_byte_order_mark(std::string_view content) {
  if (content.starts_with("\xEF\xBB\xBF")) content.remove_prefix(3);
  return content;
}

// The lines of a stream, without their ends.
class Lines {
 public:
  explicit Lines(ByteStream& stream) : stream_(stream) {}

  bool next() {
    begin_ = end_;
    carried_.clear();
    for (;;) {
      if (rest_.empty()) rest_ = stream_.next();
      const std::size_t found = rest_.find('\n');
      const bool at_end = rest_.empty();
      if (found == std::string_view::npos && !at_end) {  // the line goes on in the next piece
        carried_ += rest_;
        rest_ = {};
        continue;
      }
      if (at_end && carried_.empty()) return false;
      const std::string_view part = rest_.substr(0, found);
      if (!carried_.empty()) carried_ += part;
      line_ = carried_.empty() ? part : std::string_view(carried_);
      if (!at_end) rest_.remove_prefix(found + 1);
      end_ = begin_ + line_.size() + (at_end ? 0 : 1);
      if (++number_ == 1) {
        begin_ += line_.size() - without_byte_order_mark(line_).size();
        line_ = without_byte_order_mark(line_);
      }
      return true;
    }
  }
  // Of the last line; valid until the next call.
  std::string_view line() const { return line_; }
  int number() const { return number_; }
  // In the content.
  std::uint64_t begin() const { return begin_; }
  std::uint64_t end() const { return end_; }

 private:
  ByteStream& stream_;
  std::string_view rest_;
  std::string carried_;
  std::string_view line_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  int number_ = 0;
};

// Reads the text of one record of JSON after the other.
class RecordReader {
 public:
  RecordReader(const SourceFile& file, const model::RecordSpec& records) : file_(file), records_(records) {}

  // Prompt and text, valid until the next call; both empty for a blank line.
  Document read(std::string_view line, std::uint64_t begin, int number) {
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) return {};
    check_text(file_, line, begin, number);
    // simdjson reads beyond the end, which the memory map does not allow.
    buffer_.resize(line.size() + simdjson::SIMDJSON_PADDING);
    std::memcpy(buffer_.data(), line.data(), line.size());
    simdjson::dom::element root;
    if (const auto error = parser_.parse(buffer_.data(), line.size(), false).get(root)) {
      fail(number, text("this line is not valid JSON (", simdjson::error_message(error), ")"), "one JSON object a line",
           "correct the line");
    }
    simdjson::dom::object object;
    if (root.get_object().get(object)) fail(number, "this line is not a JSON object", "one JSON object a line", "correct the line");
    Document document;
    if (!records_.label.empty()) document.label = label(object, number);
    if (records_.has_prompts()) document.prompt = field(object, "data.prompt", records_.prompt, number);
    document.text = records_.has_prompts() ? field(object, "data.answer", records_.answer, number)
                                           : field(object, "data.field", records_.field, number);
    return document;
  }

 private:
  // A word, or a whole number or a truth value as it is written.
  std::string_view label(const simdjson::dom::object& object, int number) {
    simdjson::dom::element value;
    if (!object.at_key(records_.label).get(value) && !value.is_string()) {
      if (!value.is_int64() && !value.is_bool())
        fail(number, text("the field \"", records_.label, "\" is no label"), "a string or a whole number",
             "set data.label to the class's key");
      label_ = value.is_bool() ? (value.get_bool().value() ? "1" : "0") : text(value.get_int64().value());
      return label_;
    }
    const std::string_view word = field(object, "data.label", records_.label, number);
    if (word.empty()) fail(number, text("the field \"", records_.label, "\" is empty"), "a label", "correct the line");
    return word;
  }
  std::string_view field(const simdjson::dom::object& object, const char* key, const std::string& name, int number) const {
    simdjson::dom::element value;
    if (object.at_key(name).get(value)) {
      std::vector<std::string> keys;
      for (const auto& member : object) keys.emplace_back(member.key);
      const auto guess = nearest(name, keys);
      fail(number, text("this line has no field \"", name, "\""), "an object with that field",
           guess ? text("set ", key, " to \"", *guess, "\"") : text("set ", key, " to the text's key"));
    }
    std::string_view content;
    if (value.get_string().get(content))
      fail(number, text("the field \"", name, "\" is not a string"), "a string", text("set ", key, " to the text's key"));
    return content;
  }

  [[noreturn]] void fail(int line, const std::string& message, const std::string& expected, const std::string& hint) const {
    throw Error(ErrorCode::invalid_config, message, in_file(file_.path, line), expected,
                hint + "; data.on_error: skip, or --on-error skip, leaves out what cannot be read");
  }

  const SourceFile& file_;
  const model::RecordSpec& records_;
  simdjson::dom::parser parser_;
  std::vector<char> buffer_;
  std::string label_;  // a number's
};

// Passes the documents of one file on, and counts.
class FileReader {
 public:
  FileReader(const Source& source, const std::function<void(const Document&)>& visit) : source_(source), visit_(visit) {}

  void read(const SourceFile& file) {
    switch (file.format) {
      case Format::text: read_text(file); break;
      case Format::json_lines: read_lines(file); break;
      case Format::parquet: read_rows(file); break;
    }
    before_ += file.bytes;
  }
  std::uint64_t documents() const { return documents_; }
  std::uint64_t skipped() const { return skipped_; }

 private:
  void read_text(const SourceFile& file) {
    const auto stream = open_bytes(file);
    std::string_view content = stream->next();
    std::string whole;
    if (file.compression != Compression::none) {
      for (; !content.empty(); content = stream->next()) whole += content;
      content = whole;
    }
    check_text(file, content, 0);
    pass_on({.prompt = {}, .text = without_byte_order_mark(content), .begin = 0, .end = file.bytes});
  }

  void read_lines(const SourceFile& file) {
    const auto stream = open_bytes(file);
    RecordReader reader(file, source_.records);
    for (Lines lines(*stream); lines.next();)
      read_record([&] {
        Document document = reader.read(lines.line(), lines.begin(), lines.number());
        document.begin = stream->file_position(lines.begin());
        document.end = stream->file_position(lines.end());
        return document;
      });
  }

  void read_rows(const SourceFile& file) {
    const model::RecordSpec& records = source_.records;
    const bool labelled = !records.label.empty();
    const std::vector<std::string> columns = labelled                ? std::vector{records.label, records.field}
                                             : records.has_prompts() ? std::vector{records.prompt, records.answer}
                                                                     : std::vector{records.field};
    read_parquet(
        file.path, columns,
        [&](std::span<const std::string_view> values, std::int64_t row, double share) {
          read_record([&] {
            for (std::size_t i = 0; i < values.size(); ++i)
              if (first_invalid_utf8(values[i]))
                throw Error(ErrorCode::invalid_config, text("row ", row, " of column \"", columns[i], "\" is not UTF-8"),
                            in_file(file.path), "text", "data.on_error: skip, or --on-error skip, leaves out what cannot be read");
            const auto position = static_cast<std::uint64_t>(share * static_cast<double>(file.bytes));
            if (labelled && values.front().empty())
              throw Error(ErrorCode::invalid_config, text("row ", row, " has nothing in column \"", records.label, "\""),
                          in_file(file.path), "a label", "data.on_error: skip, or --on-error skip, leaves out what cannot be read");
            const std::string_view first = values.size() > 1 ? values.front() : std::string_view();
            return Document{.prompt = labelled ? std::string_view() : first,
                            .label = labelled ? first : std::string_view(),
                            .text = values.back(),
                            .begin = position,
                            .end = position};
          });
        },
        labelled ? ParquetValues::any : ParquetValues::text);
  }

  // Passes on what `read` returns, unless it throws for a record that is to be skipped.
  template <typename Read>
  void read_record(const Read& read) {
    Document document;
    try {
      document = read();
    } catch (const Error& error) {
      if (source_.records.on_error == model::OnError::stop || error.code() != ErrorCode::invalid_config) throw;
      ++skipped_;
      return;
    }
    pass_on(document);
  }

  void pass_on(Document document) {
    if (document.text.empty()) return;
    document.begin += before_;
    document.end += before_;
    ++documents_;
    visit_(document);
  }

  const Source& source_;
  const std::function<void(const Document&)>& visit_;
  std::uint64_t before_ = 0;  // bytes of the files before this one
  std::uint64_t documents_ = 0;
  std::uint64_t skipped_ = 0;
};

}  // namespace

std::uint64_t read_documents(const Source& source, const std::function<void(const Document&)>& visit) {
  FileReader reader(source, visit);
  for (const SourceFile& file : source.files) reader.read(file);
  if (reader.documents() == 0) {
    const std::string skipped = reader.skipped() > 0 ? text(": all ", reader.skipped(), " records were skipped") : "";
    throw Error(ErrorCode::invalid_config, text("there is no text in ", source.root.string(), skipped), {},
                "at least one document that is not empty",
                skipped.empty() ? "check data.source" : "data.on_error: stop says what is wrong");
  }
  return reader.skipped();
}

}  // namespace tessera::data
