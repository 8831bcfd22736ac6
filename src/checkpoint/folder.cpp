#include <algorithm>
#include <charconv>
#include <cstdio>
#include <iterator>
#include <map>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/manifest.hpp"

namespace tessera::checkpoint {
namespace {

constexpr const char* kBestName = "best.json";

// "step-000050.tmp" is {50, ".tmp"}.
struct Entry {
  std::int64_t step;
  std::string suffix;
  std::filesystem::path path;
};

std::optional<Entry> entry_of(const std::filesystem::path& path) {
  const std::string name = path.filename();
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  Entry entry{0, {}, path};
  const auto [end, problem] = std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), entry.step);
  entry.suffix.assign(end, name.data() + name.size());
  if (problem != std::errc() || entry.step < 0 || step_folder({}, entry.step).string() + entry.suffix != name) return std::nullopt;
  return entry;
}

std::vector<Entry> entries(const std::filesystem::path& folder) {
  std::vector<Entry> out;
  std::error_code missing;
  for (const auto& item : std::filesystem::directory_iterator(folder, missing))
    if (auto entry = entry_of(item.path())) out.push_back(std::move(*entry));
  std::sort(out.begin(), out.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.step, a.suffix) < std::pair(b.step, b.suffix); });
  return out;
}

// How much of a checkpoint is looked at before it counts as usable: what is read in milliseconds, or every byte.
enum class Check { structure, everything };

// A best.json that cannot be read protects nothing and must not end a run.
std::int64_t best_step(const std::filesystem::path& folder) {
  try {
    const auto found = best(folder);
    return found ? found->step : -1;
  } catch (const Error& problem) {
    log::warning(text("no checkpoint is kept as the best one: ", problem.what()));
    return -1;
  }
}

bool usable(const std::filesystem::path& path, Check check) {
  try {
    const Reader reader(path);
    if (check == Check::everything) reader.verify();
    return true;
  } catch (const Error& problem) {
    log::warning(text("passing over a checkpoint: ", problem.what()));
    return false;
  }
}

// Committed ones by step, a replaced one where an interrupted save left nothing else of that step.
std::map<std::int64_t, std::filesystem::path> committed(const std::filesystem::path& folder) {
  std::map<std::int64_t, std::filesystem::path> out;
  for (const Entry& entry : entries(folder))
    if (entry.suffix.empty() || (entry.suffix == ".replaced" && !out.contains(entry.step))) out[entry.step] = entry.path;
  return out;
}

// A folder under a name of its own first, so that an interrupted removal does not look like a damaged checkpoint.
void remove(FileSystem& files, const std::filesystem::path& path) {
  const auto removed = std::filesystem::path(path).concat(".removed");
  files.remove_all(removed);
  files.rename(path, removed);
  files.remove_all(removed);
}

}  // namespace

std::filesystem::path step_folder(const std::filesystem::path& folder, std::int64_t step) {
  char name[40];
  std::snprintf(name, sizeof name, "step-%06lld", static_cast<long long>(step));
  return folder / name;
}

std::vector<std::int64_t> list(const std::filesystem::path& folder) {
  std::vector<std::int64_t> out;
  for (const auto& [step, path] : committed(folder)) out.push_back(step);
  return out;
}

std::optional<std::filesystem::path> latest(const std::filesystem::path& folder) {
  const auto all = committed(folder);
  for (auto it = all.rbegin(); it != all.rend(); ++it)
    if (usable(it->second, Check::everything)) return it->second;
  return std::nullopt;
}

std::filesystem::path find(const std::filesystem::path& folder, std::optional<std::int64_t> step) {
  const auto all = committed(folder);
  const Where where{folder.string(), 0, 0, -1, {}};
  if (all.empty()) throw Error(ErrorCode::not_found, "there is no checkpoint", where, "the checkpoints of a run that wrote one");
  if (!step)
    if (const auto newest = latest(folder)) return *newest;
  const auto chosen = step ? all.find(*step) : std::prev(all.end());
  if (chosen == all.end()) {
    std::string steps;
    for (const auto& [known, path] : all) steps += text(steps.empty() ? "" : ", ", known);
    throw Error(ErrorCode::not_found, text("there is no checkpoint of step ", *step), where, "one of the steps " + steps);
  }
  Reader(chosen->second).verify();
  return chosen->second;
}

void set_aside_after(FileSystem& files, const std::filesystem::path& folder, std::int64_t step) {
  for (const auto& [later, path] : committed(folder)) {
    if (later <= step) continue;
    const auto aside = step_folder(folder, later).concat(".damaged");
    files.remove_all(aside);
    files.rename(path, aside);
    log::warning(text("the run goes on from step ", step, "; the damaged checkpoint of step ", later, " is in ", aside.string(),
                      " now; remove it when it is of no use"));
  }
}

std::optional<Best> best(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / kBestName;
  if (!std::filesystem::exists(file)) return std::nullopt;
  const Best named = parse_best(read_whole(file), file);
  if (!std::filesystem::exists(step_folder(folder, named.step))) return std::nullopt;
  return named;
}

void set_best(FileSystem& files, const std::filesystem::path& folder, const Best& best) {
  if (std::filesystem::exists(step_folder(folder, best.step))) write_whole(files, folder / kBestName, text_of(best));
}

void clean(FileSystem& files, const std::filesystem::path& folder) {
  for (const Entry& entry : entries(folder)) {
    const auto plain = step_folder(folder, entry.step);
    if (entry.suffix == ".tmp" || entry.suffix.ends_with(".removed")) {
      files.remove_all(entry.path);
    } else if (entry.suffix == ".replaced") {
      if (std::filesystem::exists(plain) && usable(plain, Check::structure)) {
        files.remove_all(entry.path);
      } else if (!std::filesystem::exists(plain)) {
        files.rename(entry.path, plain);
        files.sync_directory(folder);
      }
    }
  }
}

void prune(FileSystem& files, const std::filesystem::path& folder, std::int64_t keep) {
  clean(files, folder);
  const auto all = committed(folder);
  const std::int64_t best = best_step(folder);
  std::int64_t kept = 0;
  std::vector<std::filesystem::path> superfluous;
  for (auto it = all.rbegin(); it != all.rend(); ++it) {
    if (kept >= std::max<std::int64_t>(keep, 1)) {
      if (it->first != best) superfluous.push_back(it->second);
    } else if (usable(it->second, Check::structure)) {
      ++kept;
    }
  }
  for (auto it = superfluous.rbegin(); it != superfluous.rend(); ++it) remove(files, *it);
}

}  // namespace tessera::checkpoint
