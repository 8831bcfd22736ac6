// tessera ps: parameter servers. The arguments go to tessera-ps.
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/config.hpp"
#include "base/error.hpp"
#include "base/units.hpp"
#include "cli/checks.hpp"
#include "cli/commands.hpp"
#include "cli/workers.hpp"
#include "model/forms.hpp"
#include "model/job.hpp"
#include "model/run_name.hpp"
#include "observe/other_servers.hpp"
#include "observe/run.hpp"

namespace tessera::cli {
namespace {

void move_run(const std::string& name, const std::vector<std::string>& given) {
  const std::filesystem::path run = model::find_run_folder(name);
  const std::vector<std::string> places =
      model::read_server_places(ConfigNode::parse(nlohmann::json(given).dump(), "the servers to move to"));
  const model::JobSpec job = model::read_job(run / "train.yaml");
  const Where where{.file = run.string(), .block = {}};
  if (job.parameter_servers.places.empty())
    throw Error(ErrorCode::invalid_config,
                model::reads_clicks(job.model) ? "the run has servers of its own, in its ranks' processes"
                                               : "the run's model has no tables on parameter servers",
                where, "a run that names its servers (parameter_servers.servers)");
  const auto check_trains = [&] {
    if (!observe::is_written(run))
      throw Error(
          ErrorCode::invalid_config, "no process trains this run", where, {},
          "name the servers in train.yaml (parameter_servers.servers), and go on with --resume: they are given the checkpoint's rows");
  };
  check_trains();
  observe::ask_for_servers(run, places);
  std::cout << "asked; the run copies rows beside its steps. Ctrl-C leaves it to the run.\n" << std::flush;
  constexpr std::chrono::milliseconds kBetween(100);
  while (observe::asked_servers(run) == places) {
    std::this_thread::sleep_for(kBetween);
    if (observe::is_written(run)) continue;
    if (observe::asked_servers(run) != places) break;
    observe::forget_request(run);
    check_trains();
  }
  const std::optional<observe::ServersTaken> taken = observe::servers_taken(run);
  if (!taken || taken->places != places) throw Error(ErrorCode::interrupted, "another request has taken the place of this one", where);
  if (!taken->refused.empty())
    throw Error(ErrorCode::invalid_config, text("the run keeps the servers that it had: ", taken->refused), where);
  std::string words;
  for (const std::string& place : taken->places) words += (words.empty() ? "" : ", ") + place;
  std::cout << "after step " << taken->after_step << " the run goes on with " << words << ": " << taken->rows << " rows were copied in "
            << to_text(Seconds(taken->beside)) << " beside steps, and steps waited " << to_text(Seconds(taken->stood)) << "\n"
            << "before it is resumed, name them in its train.yaml: parameter_servers.servers=[" << words << "]\n";
}

}  // namespace

void add_ps_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("ps", "Parameter servers: hold tables of sparse rows, and see what they hold")->group(kTrainGroup);
  command->require_subcommand(1);
  command->footer(
      "Servers that other hosts reach, and their clients, need the same secret, in TESSERA_SECRET or in the file that TESSERA_SECRET_FILE "
      "names: "
      "export TESSERA_SECRET=$(openssl rand -hex 32)");
  struct Options {
    std::string run, place, backup, backup_of, log, disk, memory, metrics, seconds, threads = "1";
    std::vector<std::string> places;
    bool json = false;
  };
  auto options = std::make_shared<Options>();
  CLI::App* serving = command->add_subcommand("serve", "Hold tables that clients open, pull from and push to, until Ctrl-C");
  serving->add_option("--listen", options->place, "Where clients come")->required()->type_name("HOST:PORT");
  serving->add_option("--threads", options->threads, "Servers of one thread each, at this port and those behind it")
      ->type_name("N")
      ->check(whole_number(1))
      ->capture_default_str();
  CLI::Option* const backup =
      serving->add_option("--backup", options->backup, "Where its backup listens, which has every update before a client is told of it")
          ->type_name("HOST:PORT");
  CLI::Option* const backup_of =
      serving
          ->add_option("--backup-of", options->backup_of, "Be the backup of the servers there; clients name both, as HOST:PORT/HOST:PORT")
          ->type_name("HOST:PORT")
          ->excludes(backup);
  serving
      ->add_option("--log", options->log,
                   "Write every update to files there before a client is told of it: servers that begin anew with the same words go on "
                   "where the last ones ended, however they ended")
      ->type_name("FOLDER")
      ->excludes(backup)
      ->excludes(backup_of);
  CLI::Option* const disk =
      serving->add_option("--disk", options->disk, "Keep rows that are seldom asked for in files there, which end with the servers")
          ->type_name("FOLDER");
  disk->needs(serving->add_option("--memory", options->memory, "What each table of each thread may take of memory, as 4GiB")
                  ->type_name("SIZE")
                  ->needs(disk));
  serving
      ->add_option("--metrics", options->metrics,
                   "Answer http://HOST:PORT/metrics with figures for Prometheus, which all who reach it can read")
      ->type_name("HOST:PORT");
  serving->callback([options] {
    std::vector<std::string> arguments = {"serve", "--listen", options->place, "--threads", options->threads};
    if (!options->backup.empty()) arguments.insert(arguments.end(), {"--backup", options->backup});
    if (!options->disk.empty()) arguments.insert(arguments.end(), {"--disk", options->disk, "--memory", options->memory});
    if (!options->log.empty()) arguments.insert(arguments.end(), {"--log", options->log});
    if (!options->backup_of.empty()) arguments.insert(arguments.end(), {"--backup-of", options->backup_of});
    if (!options->metrics.empty()) arguments.insert(arguments.end(), {"--metrics", options->metrics});
    become_program("tessera-ps", arguments);
  });
  CLI::App* move = command->add_subcommand("move",
                                           "Have a run that trains go on with other servers: one more, one less, or others; rows are "
                                           "copied beside its steps, and a server that is "
                                           "named before and now keeps what stays its own");
  move->add_option("run", options->run, "The run's name or folder")->required();
  move->add_option("servers", options->places, "All servers that it is to have then, as `ps serve` says them")
      ->required()
      ->type_name("HOST:PORT ...");
  move->footer(
      "Start the servers that come new before, with the run's secret. Those that are left may be ended afterwards. Name the new ones in "
      "train.yaml "
      "before the run is resumed.");
  move->callback([options] { move_run(options->run, options->places); });
  CLI::App* status = command->add_subcommand(
      "status",
      "The tables of each server: rows, memory, how often it had them, how many keys were pulled and pushed, and how long that took");
  status->add_option("servers", options->places, "As `ps serve` says them")->required()->type_name("HOST:PORT ...");
  status->add_flag("--json", options->json, "A JSON list");
  status->add_option("--seconds", options->seconds, "Look twice, so far apart: keys a second, and latencies of that time alone")
      ->type_name("S")
      ->check(number(0));
  status->callback([options] {
    std::vector<std::string> arguments = {"status"};
    arguments.insert(arguments.end(), options->places.begin(), options->places.end());
    if (!options->seconds.empty()) arguments.insert(arguments.end(), {"--seconds", options->seconds});
    if (options->json) arguments.push_back("--json");
    become_program("tessera-ps", arguments, options->json);
  });
}

}  // namespace tessera::cli
