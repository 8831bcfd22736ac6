#include "model/run_name.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/config.hpp"
#include "base/error.hpp"

namespace tessera::model {
namespace {

bool is_run(const std::filesystem::path& folder) {
  std::error_code ignored;  // a name that no file can have is a run that does not exist
  return std::filesystem::exists(folder / "train.yaml", ignored) || std::filesystem::exists(folder / "metrics.jsonl", ignored);
}

std::optional<std::filesystem::path> folder_of(const std::string& name, const std::filesystem::path& runs) {
  // Other tools, and earlier versions, may have made folders whose names are not plain.
  if (name.find('/') == std::string::npos && name != ".." && name != "." && is_run(runs / name)) return runs / name;
  if (is_run(name)) return name;
  return std::nullopt;
}

[[noreturn]] void throw_unknown(const std::string& name, const std::filesystem::path& runs) {
  std::vector<std::string> names;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(runs, missing))
    if (is_run(entry.path())) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  const auto guess = nearest(name, names);
  std::string known;
  for (const std::string& each : names) known += (known.empty() ? "" : ", ") + each;
  throw Error(ErrorCode::not_found, "there is no run '" + name + "'", {runs.string(), 0, 0, -1, {}},
              known.empty() ? "the name or the folder of a run; there are none yet" : "one of: " + known,
              guess ? "did you mean '" + *guess + "'?" : std::string());
}

}  // namespace

std::filesystem::path find_run_folder(const std::string& name, const std::filesystem::path& runs) {
  if (const auto folder = folder_of(name, runs)) return *folder;
  throw_unknown(name, runs);
}

RunName find_run(const std::string& words, const std::filesystem::path& runs) {
  const std::size_t at = words.rfind('@');
  // A folder's name may hold an @.
  if (const auto folder = folder_of(words, runs); folder || at == std::string::npos || at == 0)
    return {folder ? *folder : find_run_folder(words, runs), {}};
  const std::filesystem::path folder = find_run_folder(words.substr(0, at), runs);
  std::int64_t step = -1;
  const char* end = words.data() + words.size();
  const auto [stop, problem] = std::from_chars(words.data() + at + 1, end, step);
  if (problem != std::errc() || stop != end || step < 0)
    throw Error(ErrorCode::invalid_config, "'" + words.substr(at + 1) + "' is no step of a run", {}, "RUN or RUN@STEP, such as my-run@200");
  return {folder, step};
}

}  // namespace tessera::model
