// Where text comes from: files of text, JSONL and Parquet, also compressed, and folders of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "data/progress.hpp"
#include "model/job.hpp"

namespace tessera::data {

enum class Format {
  text,        // the whole file is one document
  json_lines,  // one JSON object a line
  parquet
};
enum class Compression { none, gzip, zstd };

struct SourceFile {
  std::filesystem::path path;
  Format format = Format::text;
  Compression compression = Compression::none;
  std::uint64_t bytes = 0;  // on the disk
};

struct LeftOut {
  std::filesystem::path path;
  std::string reason;  // "ends in .png", "is empty", ...
};

struct Source {
  std::filesystem::path root;
  model::RecordSpec records;
  std::vector<SourceFile> files;  // of a folder: at any depth, sorted by path
  std::vector<LeftOut> left_out;  // of a folder: its other files and hidden folders, sorted by path
  std::uint64_t bytes = 0;
};

// Lists the files. Their names tell what they are: .txt is text, .jsonl, .ndjson and .json are JSONL, .parquet is Parquet, each of the
// first two also with .gz or .zst behind it. A single file with another ending is text. Throws not_found with the nearest name, and
// invalid_config for an empty file or a folder without such files; `where` is where the user named it.
Source open_source(const std::filesystem::path& root, const model::RecordSpec& records = {}, const Where& where = {});

// The files of a log that has one format, whatever they end in but .gz and .zst: the file itself; of a folder those at any depth whose
// names begin neither with '.' nor with '_' and that are not empty, by path, numbers in it by their value (day_2 before day_10). Throws as
// open_source does; `expected` says what the log should be.
std::vector<SourceFile> open_log(const std::filesystem::path& root, const std::string& expected, const Where& where);

// Throws invalid_config for a job that names no source and wants no synthetic data.
void need_source(const model::DataSpec& data);

// One line on what was left out of a folder; empty when nothing was.
std::string left_out_text(const Source& source);

struct Document {
  std::string_view prompt = {};  // stands before the text, and is no target; empty unless the source has prompts
  std::string_view label = {};   // of the text; empty unless the source has labels
  std::string_view text = {};    // valid UTF-8, as the prompt, without a byte-order mark, not empty; both are valid during the visit
  std::uint64_t begin = 0;       // where it stands in the source, of Source::bytes
  std::uint64_t end = 0;
};

// Visits every document in order; those without text are left out. Returns how many records were skipped, as their RecordSpec asks. Throws
// invalid_config for binary files (a NUL byte, or bytes that are no UTF-8) with file and offset, for records that cannot be read with file
// and line, and when there is no document; corrupt for compressed files that are damaged; not_found where Parquet cannot be read here.
std::uint64_t read_documents(const Source& source, const std::function<void(const Document&)>& visit);

// 32 hex digits for the content of all files. Reading is saved when no file changed since the last call: then the answer is found in
// `cache_dir` by path, size, inode and times. Throws io.
std::string fingerprint_of(const Source& source, const std::filesystem::path& cache_dir, const ProgressCallback& progress = {});

}  // namespace tessera::data
