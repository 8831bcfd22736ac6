#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <sstream>

#include "cli/completion.hpp"

namespace tessera::cli {
namespace {

// CLI11 says what a value may be only in the type name that its help prints: "TEXT:{fp32,bf16}", "TEXT:FILE", "RUN".
ValueKind kind_of(const std::string& type) {
  ValueKind value;
  const std::size_t open = type.find('{');
  const std::size_t close = type.find('}', open == std::string::npos ? 0 : open);
  if (open != std::string::npos && close != std::string::npos) {
    value.kind = ValueKind::Kind::choices;
    std::istringstream list(type.substr(open + 1, close - open - 1));
    for (std::string choice; std::getline(list, choice, ',');) value.choices.push_back(choice.substr(0, choice.find("->")));
  } else if (type.find("DIR") != std::string::npos) {
    value.kind = ValueKind::Kind::folder;
  } else if (type.find("FILE") != std::string::npos || type.find("PATH") != std::string::npos || type.find("YAML") != std::string::npos) {
    value.kind = ValueKind::Kind::file;
  } else if (type.find("RUN") != std::string::npos) {
    value.kind = ValueKind::Kind::run;
  }
  return value;
}

// Where the type says nothing, the name does: `TRAIN.yaml`, `run`, `--plan`.
ValueKind kind_of(const CLI::Option& option) {
  ValueKind value = kind_of(option.get_type_name());
  if (value.kind != ValueKind::Kind::free) return value;
  std::string name = option.get_name(true, false);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto names = [&](std::initializer_list<const char*> words) {
    return std::any_of(words.begin(), words.end(), [&](const char* word) { return name.find(word) != std::string::npos; });
  };
  if (names({"dir", "folder"}))
    value.kind = ValueKind::Kind::folder;
  else if (names({"yaml", "json", "csv", "file", "source", "--plan", "--cluster", "--profile", "--output", "--trace", "--html",
                  "--schedule", "--evaluate", "tokenizer"}))
    value.kind = ValueKind::Kind::file;
  else if (name == "run" || name == "--run")
    value.kind = ValueKind::Kind::run;
  return value;
}

// The type of an option with several values names each: "{hf} DIR".
std::vector<ValueKind> values_of(const CLI::Option& option) {
  const int count = option.get_type_size() * option.get_expected_min();
  if (option.get_items_expected_max() == 0) return {};
  if (count < 2) return {kind_of(option)};
  std::vector<ValueKind> out;
  std::istringstream types(option.get_type_name());
  for (std::string type; types >> type;) out.push_back(kind_of(type));
  return out;
}

void describe_into(const CLI::App& app, const std::string& parent, std::vector<CompletionCommand>& out) {
  CompletionCommand command;
  command.path = parent.empty() ? app.get_name() : parent + " " + app.get_name();
  command.description = app.get_description();
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    if (option->get_positional() && option->get_lnames().empty() && option->get_snames().empty()) {
      command.positionals.push_back(kind_of(*option));
      continue;
    }
    CompletionOption described;
    for (const std::string& name : option->get_lnames()) described.names.push_back("--" + name);
    for (const std::string& name : option->get_snames()) described.names.push_back("-" + name);
    described.description = option->get_description();
    described.values = values_of(*option);
    command.options.push_back(std::move(described));
  }
  std::vector<const CLI::App*> children = app.get_subcommands([](const CLI::App* child) { return !child->get_group().empty(); });
  for (const CLI::App* child : children) command.children.push_back(child->get_name());
  const std::string path = command.path;
  out.push_back(std::move(command));
  for (const CLI::App* child : children) describe_into(*child, path, out);
}

}  // namespace

std::vector<CompletionCommand> describe(const CLI::App& app) {
  std::vector<CompletionCommand> commands;
  describe_into(app, "", commands);
  return commands;
}

}  // namespace tessera::cli
