// Where text comes from: a text file, a JSONL file, or a folder of them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.hpp"
#include "data/progress.hpp"

namespace tessera::data {

struct SourceFile {
  std::filesystem::path path;
  bool json_lines = false;  // one JSON object a line; otherwise the whole file is one document
  std::uint64_t bytes = 0;
};

struct Source {
  std::filesystem::path root;
  std::string field;              // the text's key in JSONL lines
  std::vector<SourceFile> files;  // folders: *.txt, *.jsonl, *.ndjson and *.json (lines too) at any depth, sorted by path; hidden ones not
  std::uint64_t bytes = 0;
};

// Lists the files. A single file is JSONL by its ending (.jsonl, .ndjson, .json) and text otherwise. Throws not_found with the
// nearest name, and invalid_config for an empty file or a folder without such files; `where` is where the user named it.
Source open_source(const std::filesystem::path& root, const std::string& field = "text", const Where& where = {});

struct Document {
  std::string_view text;    // valid UTF-8 without a byte-order mark, not empty; valid during the visit
  std::uint64_t begin = 0;  // where it stands in the source, of Source::bytes
  std::uint64_t end = 0;
};

// Visits every document in order; empty ones are left out. Throws invalid_config for binary files (a NUL byte, or bytes that are no
// UTF-8) with file and offset, for lines that are no JSON objects or lack the field with file and line, and when there is no document.
void read_documents(const Source& source, const std::function<void(const Document&)>& visit);

// 32 hex digits for the content of all files. Reading is saved when no file changed since the last call: then the answer is found in
// `cache_dir` by path, size, inode and times. Throws io.
std::string fingerprint_of(const Source& source, const std::filesystem::path& cache_dir, const ProgressCallback& progress = {});

}  // namespace tessera::data
