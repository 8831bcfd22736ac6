#include <unistd.h>
#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/log.hpp"
#include "base/terminal.hpp"
#include "cli/commands.hpp"
#include "cli/run_report.hpp"
#include "cli/train_command.hpp"
#include "model/run_name.hpp"
#include "observe/run.hpp"
#include "observe/runs.hpp"

namespace tessera::cli {
namespace {

struct Options {
  std::string folder = model::kRunsFolder;
  std::string first;
  std::string second;
  std::vector<std::string> names;
  std::string html;
  std::string profile;
  bool yes = false;
  bool json = false;

  std::filesystem::path find(const std::string& name) const { return model::find_run_folder(name, folder); }
};

template <typename Result>
void print(const Result& result, bool json) {
  std::printf("%s%s", (json ? observe::to_json(result) : observe::to_table(result, columns_of(STDOUT_FILENO))).c_str(), json ? "\n" : "");
}

void list(const Options& options, bool named) {
  if (named && !std::filesystem::is_directory(options.folder))
    throw Error(ErrorCode::not_found, "there is no such folder", {options.folder, 0, 0, -1, {}}, "the folder that holds the runs");
  print(observe::list_runs(options.folder), options.json);
}

void show(const Options& options, bool page) {
  const std::filesystem::path run = options.find(options.first);
  if (!page) return print(observe::summarize(run), options.json);
  const std::filesystem::path file = options.html.empty() ? run / "report.html" : std::filesystem::path(options.html);
  check_can_write(file);
  const RunReport report = run_report(run, options.profile);
  for (const std::string& note : report.notes) log::warning(note);
  write_named(file, report.page);
  if (options.json)
    std::printf("%s\n", nlohmann::json{{"html", file.string()}, {"notes", report.notes}}.dump().c_str());
  else
    std::printf("page written to %s\n", file.c_str());
}

void rename(const Options& options) {
  const auto from = options.find(options.first);
  const auto to = from.parent_path() / run_folder(options.second).filename();
  observe::rename_run(from, to);
  if (options.json)
    print(observe::summarize(to), true);
  else
    std::printf("%s is %s now\n", from.c_str(), to.c_str());
}

// Asks on a terminal; elsewhere only --yes will do.
void confirm(const std::vector<std::filesystem::path>& runs) {
  if (::isatty(STDIN_FILENO) == 0) throw Error(ErrorCode::invalid_config, "nothing was deleted: nobody can be asked here", {}, "--yes");
  for (const auto& run : runs) std::cerr << run.string() << ", with " << observe::checkpoint_steps(run).size() << " checkpoints\n";
  std::cerr << "delete for good? [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  if (answer != "y" && answer != "yes") throw Error(ErrorCode::interrupted, "nothing was deleted");
}

void remove(const Options& options) {
  std::vector<std::filesystem::path> runs;
  for (const std::string& name : options.names) runs.push_back(options.find(name));
  if (!options.yes) confirm(runs);
  for (const auto& run : runs) {
    observe::remove_run(run);
    if (!options.json) std::printf("deleted %s\n", run.c_str());
  }
  if (!options.json) return;
  nlohmann::json deleted = nlohmann::json::array();
  for (const auto& run : runs) deleted.push_back(run.string());
  std::printf("%s\n", nlohmann::json{{"deleted", deleted}}.dump().c_str());
}

}  // namespace

void add_runs_command(CLI::App& app) {
  auto options = std::make_shared<Options>();
  CLI::App* runs = app.add_subcommand("runs", "List runs; show, compare, rename or delete them")->group(kUseGroup);
  const CLI::Option* folder = runs->add_option("--folder", options->folder, "Where the runs are")->capture_default_str();
  const auto add = [&](const char* name, const char* what) {
    CLI::App* command = runs->add_subcommand(name, what);
    command->add_flag("--json", options->json, "As one JSON object");
    return command;
  };
  runs->add_flag("--json", options->json, "As one JSON object");
  CLI::App* show_command = add("show", "What the files of one run say");
  show_command->add_option("run", options->first, "A run's name or folder")->required()->type_name("RUN");
  CLI::Option* html =
      show_command
          ->add_option("--html", options->html,
                       "Write a web page to this file (without one: report.html in the run's folder): a step's measured and "
                       "predicted timeline, instructions, memory, curves of loss, throughput and gradient norm")
          ->expected(0, 1);
  show_command->add_option("--profile", options->profile, "With --html: predict by these measured times instead of those in the cache")
      ->needs(html);
  CLI::App* compare = add("compare", "Two runs side by side, and what their train.yamls differ in");
  compare->add_option("first", options->first, "A run's name or folder")->required()->type_name("RUN");
  compare->add_option("second", options->second, "A run's name or folder")->required()->type_name("RUN");
  CLI::App* renamed = add("rename", "Give a run another name, in its train.yaml too");
  renamed->add_option("run", options->first, "A run's name or folder")->required()->type_name("RUN");
  renamed->add_option("name", options->second, "Its new name")->required();
  CLI::App* deleted = add("delete", "Delete runs with their checkpoints, for good");
  deleted->add_option("runs", options->names, "Names or folders of runs")->required()->type_name("RUN");
  deleted->add_flag("--yes", options->yes, "Do not ask");
  runs->callback([=] {
    if (show_command->parsed())
      show(*options, html->count() > 0);
    else if (compare->parsed())
      print(observe::compare_runs(options->find(options->first), options->find(options->second)), options->json);
    else if (renamed->parsed())
      rename(*options);
    else if (deleted->parsed())
      remove(*options);
    else
      list(*options, folder->count() > 0);
  });
}

}  // namespace tessera::cli
