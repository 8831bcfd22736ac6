#include "cli/app.hpp"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/log.hpp"
#include "base/standard_output.hpp"
#include "base/temporary_folder.hpp"
#include "base/terminal.hpp"
#include "cli/commands.hpp"
#include "cli/plugin_model.hpp"
#include "model/plugin.hpp"

namespace tessera::cli {
namespace {

const CLI::App* chosen_command(const CLI::App& app) {
  const CLI::App* command = &app;
  for (;;) {
    const std::vector<CLI::App*> next = command->get_subcommands();
    if (next.empty()) return command;
    command = next.back();
  }
}

// "tessera data pack"
std::string full_name(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent == nullptr ? command.get_name() : full_name(*parent) + " " + command.get_name();
}

std::vector<std::string> option_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) names.push_back("-" + name);
  }
  return names;
}

std::vector<std::string> command_names(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) names.push_back(sub->get_name());
  return names;
}

Error unexpected_word(const CLI::App& app, const CLI::App& command, const std::string& fallback) {
  std::vector<std::string> words = command.remaining();
  if (words.empty()) words = app.remaining(true);
  const std::string name = full_name(command);
  const std::string help = text("`", name, " --help` shows what there is");
  if (words.empty()) return Error(ErrorCode::invalid_config, fallback, {}, {}, help);
  const std::string word = words.front().substr(0, words.front().find('='));
  const bool is_option = word.starts_with("-");
  const std::vector<std::string> known = is_option ? option_names(command) : command_names(command);
  const std::string kind = is_option ? "option" : known.empty() ? "argument" : "command";
  // A short option is one letter: none is like another.
  const bool is_short = is_option && !word.starts_with("--");
  const auto near = is_short ? std::nullopt : nearest(word, known);
  return Error(ErrorCode::invalid_config, text(name, " has no ", kind, " `", word, "`"), {}, {},
               near ? text("did you mean `", *near, "`? ", help) : help);
}

Error explain(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& command = *chosen_command(app);
  // A misspelt word also leaves something required unsaid; the word is what the user wants to hear of.
  const bool extra = error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) || !command.remaining().empty();
  if (extra) return unexpected_word(app, command, error.what());
  return Error(ErrorCode::invalid_config, text(full_name(command), ": ", error.what()), {}, {},
               text("`", full_name(command), " --help` shows what it takes"));
}

void print(const Error& error) {
  // Who asked to stop made no mistake.
  const char* word = error.code() == ErrorCode::interrupted ? "" : color_wanted(STDERR_FILENO) ? "\033[1;31merror:\033[0m " : "error: ";
  for (const Error& one : error.each()) std::cerr << word << one.what() << std::endl;
}

int report(const Error& error, bool json) {
  std::cout.flush();
  if (json) std::cout << to_json(error) << std::endl;
  // Where the standard output takes nothing, the error is not lost.
  if (!json || !std::cout) print(error);
  log::record(log::Level::error, error.what());
  return exit_code(error.code());
}

bool wants_json(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--") return false;
    if (word == "--json") return true;
  }
  return false;
}

int parse_and_run(CLI::App& app, int argc, const char* const* argv, bool json) {
  try {
    app.parse(argc, argv);
    if (app.get_subcommands().empty()) std::cout << app.help();
    return 0;
  } catch (const CLI::RuntimeError& stop) {
    return stop.get_exit_code();
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    return report(explain(app, error), json);
  } catch (const Error& error) {
    return report(error, json);
  } catch (const std::exception& error) {
    return report(Error(ErrorCode::internal, error.what(), {}, {}, "this is a defect in Tessera; TESSERA_LOG=debug shows more"), json);
  }
}

}  // namespace

std::string typed_command() {
  const char* typed = std::getenv("TESSERA_COMMAND");
  return typed != nullptr && *typed != '\0' ? typed : "tessera";
}

std::unique_ptr<CLI::App> make_app() {
  auto app =
      std::make_unique<CLI::App>("Tessera plans, runs and watches the training of large models on the machines you have.", "tessera");
  app->set_version_flag("--version", std::string("tessera ") + TESSERA_VERSION);
  app->footer("A first run:  " + typed_command() +
              " train examples/shakespeare/train.yaml\nEvery command has --help, and every one that answers --json.");
  app->require_subcommand(0, 1);
  app->get_formatter()->column_width(28);
  add_doctor_command(*app);
  add_init_command(*app);
  add_cluster_command(*app);
  add_plan_command(*app);
  add_profile_command(*app);
  add_simulate_command(*app);
  add_calibrate_command(*app);
  add_verify_command(*app);
  add_train_command(*app);
  add_worker_command(*app);
  add_agent_command(*app);
  add_eval_command(*app);
  add_generate_command(*app);
  add_export_command(*app);
  add_import_command(*app);
  add_serve_table_command(*app);
  add_data_command(*app);
  add_ps_command(*app);
  add_runs_command(*app);
  add_completion_command(*app);
  return app;
}

int run(int argc, const char* const* argv) {
  TemporaryFolder::remove_abandoned();
  model::set_plugin_reader(described_model);
  const auto app = make_app();
  int code = parse_and_run(*app, argc, argv, wants_json(argc, argv));
  try {
    flush_standard_output();
  } catch (const Error& error) {
    // What failed before has been said, on stderr where the standard output takes nothing.
    if (code == 0) {
      print(error);
      code = exit_code(error.code());
    }
  }
  log::flush();
  return code;
}

}  // namespace tessera::cli
