#include "cli/runs_command.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>

#include "base/config.hpp"
#include "base/error.hpp"
#include "cli/commands.hpp"
#include "observe/runs.hpp"

namespace tessera::cli {
namespace {

struct Options {
  std::string folder = "runs";
  std::string first;
  std::string second;
  bool json = false;
};

// A run by its name, or by its folder.
std::filesystem::path find_run(const Options& options, const std::string& name) {
  if (const auto named = std::filesystem::path(options.folder) / name; std::filesystem::is_directory(named)) return named;
  if (std::filesystem::is_directory(name)) return name;
  std::vector<std::string> names;
  for (const auto& run : observe::list_runs(options.folder)) names.push_back(run.name);
  const auto guess = nearest(name, names);
  std::string known;
  for (const auto& candidate : names) known += (known.empty() ? "" : ", ") + candidate;
  throw Error(ErrorCode::not_found, "there is no run '" + name + "'", {options.folder, 0, 0, -1, {}},
              known.empty() ? "there are no runs" : "one of: " + known, guess ? "did you mean '" + *guess + "'?" : std::string());
}

template <typename Result>
void print(const Result& result, bool json) {
  std::printf("%s%s", (json ? observe::to_json(result) : observe::to_table(result)).c_str(), json ? "\n" : "");
}

}  // namespace

void add_runs_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* runs = app.add_subcommand("runs", "List runs, or compare two")->group(kUseGroup);
  runs->add_option("--folder", options->folder, "Where the runs are")->capture_default_str();
  runs->add_flag("--json", options->json, "As one JSON object");
  CLI::App* compare = runs->add_subcommand("compare", "Two runs side by side, and what their train.yamls differ in");
  compare->add_option("first", options->first, "A run's name or folder")->required();
  compare->add_option("second", options->second, "A run's name or folder")->required();
  compare->add_flag("--json", options->json, "As one JSON object");
  runs->callback([options, compare] {
    if (compare->parsed())
      print(observe::compare_runs(find_run(*options, options->first), find_run(*options, options->second)), options->json);
    else
      print(observe::list_runs(options->folder), options->json);
  });
}

}  // namespace tessera::cli
