// The commands that tessera-worker carries out on this host: the arguments go to it as they are.
#include <CLI/CLI.hpp>

#include "base/plain_name.hpp"
#include "cli/checks.hpp"
#include "cli/commands.hpp"
#include "cli/train_command.hpp"
#include "cli/workers.hpp"
#include "data/data.hpp"

namespace tessera::cli {
namespace {

constexpr const char* kRunHelp = "NAME or runs/NAME, or NAME@STEP for a checkpoint of its (default: the newest)";

void append_option(std::vector<std::string>& arguments, const CLI::App& command, const std::string& name, const std::string& value) {
  if (command.count(name) > 0) arguments.insert(arguments.end(), {name, value});
}

}  // namespace

void add_worker_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("worker", "Be one rank of a job, for any launcher")->group(kTrainGroup);
  command->footer(
      "The rank and the number of ranks also come from RANK and WORLD_SIZE, Slurm or MPI, the meeting place from MASTER_ADDR and "
      "MASTER_PORT. Ranks of several hosts need the same secret, in TESSERA_SECRET or in the file that TESSERA_SECRET_FILE names: "
      "export TESSERA_SECRET=$(openssl rand -hex 32)\n"
      "SIGTERM, SIGHUP and Ctrl-C at one rank make all of them finish the step and write a checkpoint; their exit code is then 75.");
  struct Options {
    std::string yaml, plan, profile, run, rank, world, rendezvous;
    std::vector<std::string> overrides;
    std::vector<std::string> changed;
    bool resume = false;
    bool overwrite = false;
  };
  auto options = std::make_shared<Options>();
  command->add_option("train_yaml", options->yaml, "What to train")->required();
  command->add_option("--plan", options->plan, "The plan file, the same on all ranks")->required();
  command->add_option(
      "--profile", options->profile,
      "What the plan was made from: with it the ranks take another plan, between two steps, when hosts or links become slow or fast");
  command->add_option("--rank", options->rank, "This process's rank")->check(whole_number(0));
  command->add_option("--world", options->world, "How many ranks there are")->check(whole_number(1));
  command->add_option("--rendezvous", options->rendezvous, "HOST:PORT where rank 0 listens");
  command->add_option("--run", options->run, "The run's folder (default: runs/NAME)");
  command->add_option("--set", options->overrides, "Override a key")->type_name("KEY=VALUE");
  CLI::Option* resume = command->add_flag("--resume", options->resume, "Go on from the run's newest checkpoint");
  command->add_flag("--overwrite", options->overwrite, "Replace a run of the same name")->excludes(resume);
  command->add_option("--change", options->changed, "With --resume: go on with other data, named by their keys")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->needs(resume)
      ->type_name("KEY,...");
  command->callback([options, command] {
    std::vector<std::string> arguments = {"train", options->yaml, "--plan", options->plan};
    arguments.insert(
        arguments.end(),
        {"--run", options->run.empty() ? run_folder(model::read_job(options->yaml, options->overrides).name).string() : options->run});
    append_option(arguments, *command, "--profile", options->profile);
    append_option(arguments, *command, "--rank", options->rank);
    append_option(arguments, *command, "--world", options->world);
    append_option(arguments, *command, "--rendezvous", options->rendezvous);
    for (const auto& setting : options->overrides) arguments.insert(arguments.end(), {"--set", setting});
    for (const auto& key : options->changed) arguments.insert(arguments.end(), {"--change", key});
    if (options->resume) arguments.push_back("--resume");
    arguments.push_back("--prepare");
    if (options->overwrite) arguments.push_back("--overwrite");
    become_worker(arguments);
  });
}

void add_eval_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("eval", "Loss and perplexity of a run on its validation text, or on another")->group(kUseGroup);
  struct Options {
    std::string run, text, log, predictions, sequences;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  command->add_option("run", options->run, kRunHelp)->required();
  command->add_option("--text", options->text, "A text file, a JSONL file or a folder to evaluate on, all of it");
  command->add_option("--log", options->log, "Of a model of click logs: a log in the run's format to evaluate on, all of it")
      ->type_name("FILE");
  command
      ->add_option("--predictions", options->predictions,
                   "Of a model of click logs: write a CSV file with each line's label and the probability of a click")
      ->type_name("FILE");
  command->add_option("--sequences", options->sequences, "At most this many sequences; 0: all (default)")->check(whole_number(0));
  command->add_flag("--json", options->json, "One JSON object");
  command->callback([options, command] {
    std::vector<std::string> arguments = {"eval", options->run};
    append_option(arguments, *command, "--log", options->log);
    append_option(arguments, *command, "--predictions", options->predictions);
    append_option(arguments, *command, "--text", options->text);
    append_option(arguments, *command, "--sequences", options->sequences);
    if (options->json) arguments.push_back("--json");
    become_worker(arguments, options->json);
  });
}

void add_generate_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("generate", "Write text with a trained model")->group(kUseGroup);
  struct Options {
    std::string run, prompt, max_tokens, temperature, top_k, top_p, seed;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  command->add_option("run", options->run, kRunHelp)->required();
  command->add_option("--prompt", options->prompt, "The text to go on from");
  command->add_option("--max-tokens", options->max_tokens, "How many tokens to write (default: 200)")->check(whole_number(0));
  command->add_option("--temperature", options->temperature, "0: always the most likely token (default: 0.8)")->check(number(0));
  command->add_option("--top-k", options->top_k, "Choose among the K most likely tokens; 0: all (default: 40)")->check(whole_number(0));
  command->add_option("--top-p", options->top_p, "Choose among the likeliest tokens that make up this probability (default: 1)")
      ->check(number(0, 1));
  command->add_option("--seed", options->seed, "The same seed writes the same text (default: 1)")->check(whole_number(0));
  command->add_flag("--json", options->json, "One JSON object instead of a stream");
  command->callback([options, command] {
    std::vector<std::string> arguments = {"generate", options->run};
    append_option(arguments, *command, "--prompt", options->prompt);
    append_option(arguments, *command, "--max-tokens", options->max_tokens);
    append_option(arguments, *command, "--temperature", options->temperature);
    append_option(arguments, *command, "--top-k", options->top_k);
    append_option(arguments, *command, "--top-p", options->top_p);
    append_option(arguments, *command, "--seed", options->seed);
    if (options->json) arguments.push_back("--json");
    become_worker(arguments, options->json);
  });
}

void add_export_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("export", "Write a run's model for other software: --to hf DIR, --to torchvision FILE, --to serving DIR")
          ->group(kUseGroup);
  struct Options {
    std::string run;
    std::vector<std::string> to;
    std::string dtype = "fp32", rows;
  };
  auto options = std::make_shared<Options>();
  command->add_option("run", options->run, kRunHelp)->required();
  command
      ->add_option("--to", options->to,
                   "hf DIR: a folder for Hugging Face transformers; torchvision FILE: a .safetensors state dict of a ResNet or a VGG; "
                   "serving DIR: weights and tables of a model of click logs, for `serve-table` and `eval`")
      ->required()
      ->expected(2)
      ->type_name("{hf,torchvision,serving} PATH");
  command->add_option("--dtype", options->dtype, "Of the weights: fp32, as they were trained, or bf16, half as large")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->capture_default_str();
  command->add_option("--rows", options->rows, "Of a serving directory's tables: fp32, bf16 or int8 (default: as the servers stored them)")
      ->check(CLI::IsMember({"fp32", "bf16", "int8"}));
  command->callback([options] {
    const bool torchvision = options->to[0] == "torchvision", serving = options->to[0] == "serving";
    if (options->to[0] != "hf" && !torchvision && !serving)
      throw Error(ErrorCode::invalid_config, "unknown export format '" + options->to[0] + "'", {},
                  "hf (a folder for Hugging Face transformers), torchvision (a .safetensors file) or serving (a folder for serve-table)");
    if (serving && options->dtype != "fp32")
      throw Error(ErrorCode::invalid_config, "the weights of a serving directory are written in fp32", {},
                  "no --dtype; --rows says how rows are");
    if (!serving && !options->rows.empty())
      throw Error(ErrorCode::invalid_config, "--rows is about tables, and only a serving directory has some", {}, "--to serving DIR");
    if (torchvision && options->dtype != "fp32")
      throw Error(ErrorCode::invalid_config, "a state dict for torchvision is written in fp32", {}, "no --dtype");
    std::vector<std::string> arguments = {"export", options->run, "--to", options->to[1]};
    if (options->dtype == "bf16") arguments.push_back("--bf16");
    if (torchvision) arguments.push_back("--torchvision");
    if (serving) arguments.push_back("--serving");
    if (!options->rows.empty()) arguments.insert(arguments.end(), {"--rows", options->rows});
    become_worker(arguments);
  });
}

void add_serve_table_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("serve-table", "Answer look-ups from the tables of a serving directory, until Ctrl-C")->group(kUseGroup);
  command->footer(
      "Clients of parameter servers read it as they read those, and cannot change it. Servers that other hosts reach, and their clients, "
      "need "
      "the same secret, in TESSERA_SECRET or in the file that TESSERA_SECRET_FILE names.");
  struct Options {
    std::string folder, place, threads = "1";
    bool check = false;
  };
  auto options = std::make_shared<Options>();
  command->add_option("folder", options->folder, "What `export RUN --to serving` wrote")->required();
  command->add_option("--listen", options->place, "Where clients come")->required()->type_name("HOST:PORT");
  command->add_option("--threads", options->threads, "Servers of one thread each, at this port and those behind it")
      ->type_name("N")
      ->check(whole_number(1))
      ->capture_default_str();
  command->add_flag("--check", options->check, "Read the whole table first, and refuse a damaged one");
  command->callback([options] {
    std::vector<std::string> arguments = {"serve-table", options->folder, "--listen", options->place, "--threads", options->threads};
    if (options->check) arguments.push_back("--check");
    become_program("tessera-ps", arguments);
  });
}

void add_import_command(CLI::App& app) {
  CLI::App* command =
      app.add_subcommand("import", "Make a run from a Hugging Face folder of a decoder (Llama, DeepSeek-V3, GPT-2, ...), a BERT or a T5")
          ->group(kUseGroup);
  struct Options {
    std::string directory, name, source;
  };
  auto options = std::make_shared<Options>();
  command->add_option("directory", options->directory, "With config.json and model.safetensors")->required();
  command->add_option("--name", options->name, "The run's name (default: the folder's)");
  command->add_option("--source", options->source, "The text to train it further and to evaluate it on")->type_name("PATH");
  command->callback([options, command] {
    const std::filesystem::path directory = std::filesystem::path(options->directory).lexically_normal();
    const std::filesystem::path folder = directory.filename().empty() ? directory.parent_path() : directory;
    const std::string name = command->count("--name") > 0 ? options->name : plain_name_of(folder.filename().string());
    std::vector<std::string> arguments = {"import", options->directory, "--run", run_folder(name).string()};
    if (command->count("--source") > 0) {
      data::open_source(options->source);
      arguments.insert(arguments.end(), {"--source", std::filesystem::absolute(options->source).lexically_normal().string()});
    }
    become_worker(arguments);
  });
}

}  // namespace tessera::cli
