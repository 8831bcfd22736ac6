#include "data/source.hpp"

#include <simdjson.h>
#include <sys/stat.h>
#include <algorithm>
#include <chrono>
#include <cstring>

#include "base/config.hpp"
#include "base/file_system.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "data/in_file.hpp"
#include "data/utf8.hpp"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

bool is_json_lines(const fs::path& path) {
  const auto ending = path.extension();
  return ending == ".jsonl" || ending == ".ndjson" || ending == ".json";
}

[[noreturn]] void missing(const fs::path& root, const Where& where) {
  std::vector<std::string> names;
  std::error_code ignored;
  const fs::path folder = root.has_parent_path() ? root.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, ignored)) names.push_back(entry.path().filename());
  const auto guess = nearest(root.filename().string(), names);
  throw Error(ErrorCode::not_found, text("the data source ", root.string(), " does not exist"), where,
              "a text file, a JSONL file or a folder of them",
              guess ? text("did you mean ", (folder / *guess).lexically_normal().string(), "?") : "check data.source");
}

std::string_view as_text(std::span<const std::byte> bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

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

// Reads the text of one line after the other.
class LineReader {
 public:
  LineReader(const SourceFile& file, const std::string& field) : file_(file), field_(field) {}

  // The text, valid until the next call; empty for a blank line.
  std::string_view read(std::string_view line, std::uint64_t begin, int number) {
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
    simdjson::dom::element value;
    if (object.at_key(field_).get(value)) {
      std::vector<std::string> keys;
      for (const auto& member : object) keys.emplace_back(member.key);
      const auto guess = nearest(field_, keys);
      fail(number, text("this line has no field \"", field_, "\""), "an object with that field",
           guess ? text("set data.field to \"", *guess, "\"") : "set data.field to the text's key");
    }
    std::string_view content;
    if (value.get_string().get(content))
      fail(number, text("the field \"", field_, "\" is not a string"), "a string", "set data.field to the text's key");
    return content;
  }

 private:
  [[noreturn]] void fail(int line, const std::string& message, const std::string& expected, const std::string& hint) const {
    throw Error(ErrorCode::invalid_config, message, in_file(file_.path, line), expected, hint);
  }

  const SourceFile& file_;
  const std::string& field_;
  simdjson::dom::parser parser_;
  std::vector<char> buffer_;
};

std::int64_t nanoseconds(const timespec& time) { return static_cast<std::int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec; }

// A key for the state of all files as the file system tells it; empty when one changed so lately that a further change could
// leave its times as they are.
std::string state_key(const Source& source) {
  constexpr std::int64_t kSettled = 2'000'000'000;
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  std::string key;
  for (const SourceFile& file : source.files) {
    struct stat status {};
    if (::stat(file.path.c_str(), &status) != 0) throw_errno("inspect", file.path, errno);
    if (std::max(nanoseconds(status.st_mtim), nanoseconds(status.st_ctim)) + kSettled > now) return {};
    key += text(fs::absolute(file.path).string(), '\0', file.json_lines, ' ', status.st_size, ' ', status.st_ino, ' ', status.st_dev, ' ',
                nanoseconds(status.st_mtim), ' ', nanoseconds(status.st_ctim), '\n');
  }
  return hash128_hex(key);
}

}  // namespace

Source open_source(const fs::path& root, const std::string& field, const Where& where) {
  std::error_code error;
  const fs::file_status status = fs::status(root, error);
  if (status.type() == fs::file_type::not_found || root.empty()) missing(root, where);
  if (error) throw_errno("inspect", root, error.value());
  Source source{.root = root, .field = field, .files = {}, .bytes = 0};
  if (fs::is_directory(status)) {
    const auto hidden = [](const fs::path& path) { return path.filename().string().starts_with('.'); };
    auto entry = fs::recursive_directory_iterator(root, error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
      if (hidden(entry->path())) {
        entry.disable_recursion_pending();
        continue;
      }
      if (!entry->is_regular_file()) continue;
      if (entry->path().extension() != ".txt" && !is_json_lines(entry->path())) continue;
      if (entry->file_size() == 0) {
        log::warning(text(entry->path().string(), " is empty and is left out"));
        continue;
      }
      source.files.push_back({entry->path(), is_json_lines(entry->path()), entry->file_size()});
    }
    if (error) throw_errno("list", root, error.value());
    std::sort(source.files.begin(), source.files.end(),
              [](const SourceFile& a, const SourceFile& b) { return a.path.native() < b.path.native(); });
    if (source.files.empty()) {
      throw Error(ErrorCode::invalid_config, text("the folder ", root.string(), " holds no text"), where,
                  "files that end in .txt, .jsonl, .ndjson or .json", "check data.source");
    }
  } else {
    source.files.push_back({root, is_json_lines(root), fs::file_size(root, error)});
    if (error) throw_errno("inspect", root, error.value());
    if (source.files[0].bytes == 0) {
      throw Error(ErrorCode::invalid_config, text("the file ", root.string(), " is empty"), where, "some text", "check data.source");
    }
  }
  for (const SourceFile& file : source.files) source.bytes += file.bytes;
  return source;
}

void read_documents(const Source& source, const std::function<void(const Document&)>& visit) {
  std::uint64_t before = 0;
  bool any = false;
  const auto pass_on = [&](std::string_view content, std::uint64_t begin, std::uint64_t end) {
    if (content.empty()) return;
    any = true;
    visit({content, before + begin, before + end});
  };
  for (const SourceFile& file : source.files) {
    const MappedFile map(file.path);
    const std::string_view all = as_text(map.bytes());
    if (!file.json_lines) {
      check_text(file, all, 0);
      pass_on(without_byte_order_mark(all), 0, all.size());
    } else {
      LineReader reader(file, source.field);
      int number = 0;
      for (std::size_t begin = all.size() - without_byte_order_mark(all).size(); begin < all.size();) {
        const std::size_t end = std::min(all.find('\n', begin), all.size());
        pass_on(reader.read(all.substr(begin, end - begin), begin, ++number), begin, end);
        begin = end + 1;
      }
    }
    before += file.bytes;
  }
  if (!any) {
    throw Error(ErrorCode::invalid_config, text("there is no text in ", source.root.string()), {},
                "at least one document that is not empty", "check data.source");
  }
}

std::string fingerprint_of(const Source& source, const fs::path& cache_dir, const ProgressCallback& progress) {
  constexpr std::size_t kDigits = 32;
  const std::string key = state_key(source);
  const fs::path memo = cache_dir / ("source-" + key + ".txt");
  std::error_code ignored;
  if (!key.empty() && fs::exists(memo, ignored)) {
    const std::string known = read_whole(memo);
    if (known.size() == kDigits + 1 && known.find_first_not_of("0123456789abcdef") == kDigits) return known.substr(0, kDigits);
  }
  ProgressMeter meter(progress, "reading");
  std::string parts;
  double done = 0;
  for (const SourceFile& file : source.files) {
    parts += text(file.json_lines ? "lines " : "text ", hash128_hex(MappedFile(file.path).bytes()), '\n');
    meter.update(done += static_cast<double>(file.bytes), static_cast<double>(source.bytes));
  }
  const std::string fingerprint = hash128_hex(parts);
  if (!key.empty()) {
    real_file_system().create_directories(cache_dir);
    write_whole(real_file_system(), memo, fingerprint + "\n");
  }
  return fingerprint;
}

}  // namespace tessera::data
