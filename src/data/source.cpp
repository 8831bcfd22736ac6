#include "data/source.hpp"

#include <sys/stat.h>
#include <algorithm>
#include <chrono>
#include <optional>

#include "base/config.hpp"
#include "base/file_system.hpp"
#include "base/hash.hpp"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExpected = "a file of text, JSONL or Parquet (text and JSONL also as .gz or .zst), or a folder of them";

[[noreturn]] void missing(const fs::path& root, const std::string& expected, const Where& where) {
  std::vector<std::string> names;
  std::error_code ignored;
  const fs::path folder = root.has_parent_path() ? root.parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, ignored)) names.push_back(entry.path().filename());
  const auto guess = nearest(root.filename().string(), names);
  throw Error(ErrorCode::not_found, text("the data source ", root.string(), " does not exist"), where, expected,
              guess ? text("did you mean ", (folder / *guess).lexically_normal().string(), "?")
                    : "check data.source; a relative path in a train.yaml begins at the folder of the train.yaml");
}

struct Kind {
  std::optional<Format> format;  // none: the name does not tell
  Compression compression = Compression::none;
};

Kind kind_of(fs::path path) {
  Kind kind;
  if (path.extension() == ".gz") kind.compression = Compression::gzip;
  if (path.extension() == ".zst") kind.compression = Compression::zstd;
  if (kind.compression != Compression::none) path = path.stem();
  const fs::path ending = path.extension();
  if (ending == ".txt") kind.format = Format::text;
  if (ending == ".jsonl" || ending == ".ndjson" || ending == ".json") kind.format = Format::json_lines;
  if (ending == ".parquet" && kind.compression == Compression::none) kind.format = Format::parquet;
  return kind;
}

// Why a file of a folder cannot be read as documents; empty when it can.
std::string reason_against(const fs::directory_entry& entry, const model::RecordSpec& records) {
  if (!entry.is_regular_file()) return "is no regular file";
  const Kind kind = kind_of(entry.path());
  if (!kind.format) return entry.path().has_extension() ? text("ends in ", entry.path().extension().string()) : "has no ending";
  if (entry.file_size() == 0) return "is empty";
  if (kind.format == Format::text && records.of_records())
    return text("is text, which has no ", records.has_prompts() ? "prompts" : "labels");
  return {};
}

void list_folder(Source& source) {
  std::error_code error;
  auto entry = fs::recursive_directory_iterator(source.root, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const fs::path& path = entry->path();
    if (path.filename().string().starts_with('.')) {
      entry.disable_recursion_pending();
      source.left_out.push_back({path, "is hidden"});
    } else if (!entry->is_directory()) {
      const std::string reason = reason_against(*entry, source.records);
      const Kind kind = kind_of(path);
      if (reason.empty())
        source.files.push_back({path, *kind.format, kind.compression, entry->file_size()});
      else
        source.left_out.push_back({path, reason});
    }
  }
  if (error) throw_errno("list", source.root, error.value());
  const auto by_path = [](const auto& a, const auto& b) { return a.path.native() < b.path.native(); };
  std::sort(source.files.begin(), source.files.end(), by_path);
  std::sort(source.left_out.begin(), source.left_out.end(), by_path);
}

// Whether a comes before b; of digits that follow each other the number counts, without its leading zeros.
bool in_numbers_order(std::string_view a, std::string_view b) {
  constexpr std::string_view kDigits = "0123456789";
  const auto take_number = [&](std::string_view& rest) {
    const std::size_t digits = std::min(rest.find_first_not_of(kDigits), rest.size());
    std::string_view number = rest.substr(0, digits);
    number.remove_prefix(std::min(number.find_first_not_of('0'), number.size()));
    rest.remove_prefix(digits);
    return number;
  };
  const std::string_view whole_a = a, whole_b = b;
  while (!a.empty() && !b.empty()) {
    if (kDigits.find(a.front()) != kDigits.npos && kDigits.find(b.front()) != kDigits.npos) {
      const std::string_view first = take_number(a), second = take_number(b);
      if (first.size() != second.size()) return first.size() < second.size();
      if (first != second) return first < second;
      continue;
    }
    if (a.front() != b.front()) return a.front() < b.front();
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  return a.empty() && b.empty() ? whole_a < whole_b : a.empty();
}

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
    key += text(fs::absolute(file.path).string(), '\0', status.st_size, ' ', status.st_ino, ' ', status.st_dev, ' ',
                nanoseconds(status.st_mtim), ' ', nanoseconds(status.st_ctim), '\n');
  }
  return hash128_hex(key);
}

}  // namespace

std::vector<SourceFile> open_log(const fs::path& root, const std::string& expected, const Where& where) {
  std::error_code error;
  const fs::file_status status = fs::status(root, error);
  if (status.type() == fs::file_type::not_found || root.empty()) missing(root, expected, where);
  if (error) throw_errno("inspect", root, error.value());
  const auto file_at = [](const fs::path& path) { return SourceFile{path, Format::text, kind_of(path).compression, fs::file_size(path)}; };
  if (!fs::is_directory(status)) {
    if (fs::file_size(root) == 0)
      throw Error(ErrorCode::invalid_config, text("the file ", root.string(), " is empty"), where, expected, "check data.source");
    return {file_at(root)};
  }

  std::vector<SourceFile> files;
  auto entry = fs::recursive_directory_iterator(root, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename();
    if (name.starts_with('.') || name.starts_with('_'))
      entry.disable_recursion_pending();
    else if (entry->is_regular_file() && entry->file_size() > 0)
      files.push_back(file_at(entry->path()));
  }
  if (error) throw_errno("list", root, error.value());
  if (files.empty())
    throw Error(ErrorCode::invalid_config, text("the folder ", root.string(), " holds no log"), where, expected,
                "files that are empty, or whose names begin with '.' or '_', do not count");
  std::ranges::sort(files, in_numbers_order, [](const SourceFile& file) { return std::string_view(file.path.native()); });
  return files;
}

Source open_source(const fs::path& root, const model::RecordSpec& records, const Where& where) {
  std::error_code error;
  const fs::file_status status = fs::status(root, error);
  if (status.type() == fs::file_type::not_found || root.empty()) missing(root, kExpected, where);
  if (error) throw_errno("inspect", root, error.value());
  Source source{.root = root, .records = records, .files = {}, .left_out = {}, .bytes = 0};
  if (fs::is_directory(status)) {
    list_folder(source);
    if (source.files.empty()) {
      throw Error(ErrorCode::invalid_config, text("the folder ", root.string(), " holds no text"), where,
                  "files that end in .txt, .jsonl, .ndjson or .json (also with .gz or .zst behind it) or .parquet",
                  source.left_out.empty() ? "check data.source" : left_out_text(source));
    }
  } else {
    const Kind kind = kind_of(root);
    source.files.push_back({root, kind.format.value_or(Format::text), kind.compression, fs::file_size(root, error)});
    if (error) throw_errno("inspect", root, error.value());
    if (source.files[0].bytes == 0) {
      throw Error(ErrorCode::invalid_config, text("the file ", root.string(), " is empty"), where, "some text", "check data.source");
    }
    if (source.files[0].format == Format::text && records.of_records()) {
      throw Error(ErrorCode::invalid_config,
                  text("the file ", root.string(), " is text, which has no ", records.has_prompts() ? "prompts and answers" : "labels"),
                  where, "JSONL or Parquet",
                  records.has_prompts() ? "leave data.prompt and data.answer out, or name another source" : "name another source");
    }
  }
  for (const SourceFile& file : source.files) source.bytes += file.bytes;
  return source;
}

void need_source(const model::DataSpec& data) {
  if (data.synthetic || !data.sources.empty()) return;
  throw Error(ErrorCode::invalid_config, "the job names no data: data.source is not set", data.where, kExpected,
              data.where.file.empty() ? "set data.source" : "set data.source in " + data.where.file);
}

std::string left_out_text(const Source& source) {
  if (source.left_out.empty()) return {};
  constexpr std::size_t kNamed = 3;
  std::string names;
  for (std::size_t i = 0; i < std::min(kNamed, source.left_out.size()); ++i) {
    const LeftOut& file = source.left_out[i];
    names += text(i == 0 ? "" : ", ", file.path.lexically_relative(source.root).string(), " (", file.reason, ")");
  }
  if (source.left_out.size() > kNamed) names += text(" and ", source.left_out.size() - kNamed, " more");
  return text("left out of ", source.root.string(), ": ", names);
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
    parts +=
        text(static_cast<int>(file.format), ' ', static_cast<int>(file.compression), ' ', hash128_hex(MappedFile(file.path).bytes()), '\n');
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
