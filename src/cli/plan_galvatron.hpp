// Internal: `tessera plan --galvatron search_dist.yaml [KEY=VALUE ...]`.
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace tessera::cli {

struct GalvatronOptions {
  std::string yaml;
  std::string evaluate;
  std::string release = "2.4.1";
};

// Adds --galvatron, --evaluate and --galvatron-release to the command.
std::shared_ptr<GalvatronOptions> add_galvatron_options(CLI::App& command);
// Plans from Galvatron's files, or prices a galvatron_config_*.json; `output`: a file or folder for the answer, or empty.
void plan_from_galvatron(const GalvatronOptions& options, const std::vector<std::string>& overrides, const std::string& output, bool json);

}  // namespace tessera::cli
