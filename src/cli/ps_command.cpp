// tessera ps: parameter servers. The arguments go to tessera-ps.
#include <CLI/CLI.hpp>

#include "cli/checks.hpp"
#include "cli/commands.hpp"
#include "cli/workers.hpp"

namespace tessera::cli {

void add_ps_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("ps", "Parameter servers: hold tables of sparse rows, and see what they hold")->group(kTrainGroup);
  command->require_subcommand(1);
  command->footer(
      "Servers that other hosts reach, and their clients, need the same secret, in TESSERA_SECRET or in the file that TESSERA_SECRET_FILE "
      "names: "
      "export TESSERA_SECRET=$(openssl rand -hex 32)");
  struct Options {
    std::string place, backup, backup_of, disk, memory, metrics, seconds, threads = "1";
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
  serving->add_option("--backup-of", options->backup_of, "Be the backup of the servers there; clients name both, as HOST:PORT/HOST:PORT")
      ->type_name("HOST:PORT")
      ->excludes(backup);
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
    if (!options->backup_of.empty()) arguments.insert(arguments.end(), {"--backup-of", options->backup_of});
    if (!options->metrics.empty()) arguments.insert(arguments.end(), {"--metrics", options->metrics});
    become_program("tessera-ps", arguments);
  });
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
