#include <fcntl.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/shell.hpp"
#include "cli/checks.hpp"
#include "cli/commands.hpp"
#include "cli/init_template.hpp"

namespace tessera::cli {
namespace {

constexpr const char* kExampleText = "examples/shakespeare/shakespeare.txt";

struct Options {
  std::filesystem::path output = "train.yaml";
  InitAnswers answers;
  bool yes = false;
  bool json = false;
};

[[noreturn]] void refuse_overwrite(const std::filesystem::path& path) {
  throw Error(ErrorCode::io, text(path.string(), " exists already and is left as it is"), {}, {},
              "write elsewhere with -o FILE, or remove it first");
}

// Reads a line; an empty one, or the end of input, keeps the default.
std::string ask(const std::string& question, const std::string& fallback) {
  std::cerr << question << " [" << fallback << "] " << std::flush;
  std::string line;
  if (!std::getline(std::cin, line)) throw Error(ErrorCode::interrupted, "stopped before the last question; nothing was written");
  const std::size_t begin = line.find_first_not_of(" \t");
  if (begin == std::string::npos) return fallback;
  return line.substr(begin, line.find_last_not_of(" \t") - begin + 1);
}

// Asks again until `accept` takes the answer; it throws Error with the reason when it does not.
template <typename Accept>
void ask_until(const std::string& question, const std::string& fallback, Accept accept) {
  for (;;) {
    const std::string answer = ask(question, fallback);
    try {
      accept(answer);
      return;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::interrupted) throw;
      std::cerr << "  " << error.what() << "\n";
    }
  }
}

std::int64_t whole_number(const std::string& answer, std::int64_t least) {
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(answer, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != answer.size() || value < least) {
    throw Error(ErrorCode::invalid_config, text("`", answer, "` will not do"), {}, text("a whole number, at least ", least));
  }
  return value;
}

void check_source(const std::string& source) {
  if (source.empty()) {
    throw Error(ErrorCode::invalid_config, "no text to train on was named", {}, "a text file, a JSONL file or a folder of them",
                "--source FILE");
  }
  if (source != "synthetic" && !std::filesystem::exists(source)) {
    throw Error(ErrorCode::not_found, text("there is no ", source, " here"), {}, "a text file, a JSONL file or a folder of them");
  }
}

void check_precision(const std::string& precision) {
  if (precision != "fp32" && precision != "bf16") {
    throw Error(ErrorCode::invalid_config, text("`", precision, "` is no precision"), {}, "fp32 or bf16");
  }
}

void interview(InitAnswers& answers) {
  ask_until("Text to train on (file or folder)?", answers.source,
            [&](const std::string& answer) { check_source(answer), answers.source = answer; });
  std::cerr << "Model sizes:\n";
  for (const SizePreset& preset : size_presets()) std::cerr << "  " << preset.name << "\t" << preset.purpose << "\n";
  ask_until("Which size?", answers.size, [&](const std::string& answer) { answers.size = size_preset(answer).name; });
  ask_until("Words in the vocabulary?", std::to_string(answers.vocab),
            [&](const std::string& answer) { answers.vocab = whole_number(answer, 257); });
  ask_until("Steps?", std::to_string(answers.steps), [&](const std::string& answer) { answers.steps = whole_number(answer, 1); });
  ask_until("Precision (fp32 or bf16)?", answers.precision,
            [&](const std::string& answer) { check_precision(answer), answers.precision = answer; });
}

// O_EXCL decides, so that a file that appears meanwhile is not overwritten either.
void write_new(const std::filesystem::path& path, const std::string& content) {
  if (path.has_parent_path()) real_file_system().create_directories(path.parent_path());
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0 && errno == EEXIST) refuse_overwrite(path);
  if (file < 0) throw_errno("write", path.string(), errno);
  close(file);
  try {
    write_whole(real_file_system(), path, content);
  } catch (const Error&) {
    real_file_system().remove_all(path);
    throw;
  }
}

// A source that was named in the current folder as the train.yaml has to name it.
std::string beside(const std::filesystem::path& yaml, const std::string& source) {
  if (source == "synthetic" || !yaml.has_parent_path() || std::filesystem::path(source).is_absolute()) return source;
  const std::filesystem::path folder = std::filesystem::absolute(yaml).lexically_normal().parent_path();
  return std::filesystem::absolute(source).lexically_normal().lexically_proximate(folder).string();
}

void init(Options& options) {
  if (std::filesystem::exists(options.output)) refuse_overwrite(options.output);
  if (options.answers.source.empty() && std::filesystem::exists(kExampleText)) options.answers.source = kExampleText;
  const bool may_ask = !options.yes && !options.json && isatty(STDIN_FILENO) != 0;
  if (may_ask) {
    interview(options.answers);
  } else {
    check_source(options.answers.source);
    size_preset(options.answers.size);
  }
  InitAnswers answers = options.answers;
  answers.source = beside(options.output, answers.source);
  write_new(options.output, train_yaml(answers));
  const std::string next = typed_command() + " train " + shell_quoted(options.output.string());
  if (options.json) {
    std::cout << nlohmann::ordered_json{{"file", options.output.string()}, {"next", next}}.dump() << "\n";
  } else {
    std::cout << "wrote " << options.output.string() << "; next:\n\n  " << next << "\n";
  }
}

}  // namespace

void add_init_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("init", "Ask a few questions and write a train.yaml")->group(kStartGroup);
  auto options = std::make_shared<Options>();
  command->add_option("-o,--output", options->output, "Where to write it")->capture_default_str()->type_name("FILE");
  command->add_option("--source", options->answers.source, "Text to train on")->type_name("PATH");
  command->add_option("--size", options->answers.size, "Size of the model")
      ->capture_default_str()
      ->check(CLI::IsMember({"tiny", "small", "medium", "large"}));
  command->add_option("--vocab", options->answers.vocab, "Tokens in the vocabulary")
      ->capture_default_str()
      ->check(whole_number(257, 1 << 20));
  command->add_option("--steps", options->answers.steps, "Optimizer steps")->capture_default_str()->check(whole_number(1, 1 << 30));
  command->add_option("--precision", options->answers.precision, "Precision of computation")
      ->capture_default_str()
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command->add_flag("-y,--yes", options->yes, "Ask nothing; take the options and their defaults");
  command->add_flag("--json", options->json, "Ask nothing; print one JSON object");
  command->callback([options] { init(*options); });
}

}  // namespace tessera::cli
