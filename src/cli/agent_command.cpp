// tessera launch-agent: what `tessera train --hosts` and `--launcher` start on each host. Hidden, as nobody types it.
#include <CLI/CLI.hpp>

#include "cli/commands.hpp"
#include "cluster/cluster.hpp"
#include "cluster/processors.hpp"
#include "control/agent.hpp"

namespace tessera::cli {

void add_agent_command(CLI::App& app) {
  CLI::App* command = app.add_subcommand("launch-agent", "Start the ranks of this host for `train` on another one")->group("");
  struct Options {
    std::vector<std::string> places;
    std::string secret_file;
  };
  auto options = std::make_shared<Options>();
  CLI::Option* places =
      command->add_option("--call", options->places, "Where `train` listens (default: at this process's input and output)")
          ->delimiter(',')
          ->type_name("ADDRESS:PORT,...");
  command->add_option("--secret-file", options->secret_file, "Holds the secret of the run")->needs(places);
  command->callback([options] {
    control::run_agent({.version = TESSERA_VERSION,
                        .cluster = cluster::to_yaml(cluster::discover_host()),
                        .processors = cluster::usable_processors(),
                        .places = options->places,
                        .secret_file = options->secret_file});
  });
}

}  // namespace tessera::cli
