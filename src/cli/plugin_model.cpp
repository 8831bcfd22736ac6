#include "cli/plugin_model.hpp"

#include <map>

#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"
#include "control/local_launcher.hpp"
#include "model/plugin.hpp"
#include "model/spec_json.hpp"

namespace tessera::cli {

model::ModelSpec described_model(const ConfigNode& section) {
  static std::map<std::string, model::ModelSpec> known;
  const auto [found, fresh] = known.try_emplace(model::portable_plugin_section(section));
  if (!fresh) return found->second;
  try {
    const TemporaryFolder scratch;
    const std::filesystem::path text = scratch.path() / "model.yaml";
    const std::filesystem::path result = scratch.path() / "model.json";
    write_whole(real_file_system(), text, found->first);
    control::WorkerCommand command;
    command.arguments = {control::sibling_program("tessera-worker").string(), "model", text.string(), "--output", result.string()};
    if (std::filesystem::exists(section.file())) command.arguments.insert(command.arguments.end(), {"--file", section.file()});
    control::run_workers({command}, {});
    found->second = model::model_from_json(read_whole(result), result.string());
  } catch (...) {
    known.erase(found);
    throw;
  }
  return found->second;
}

}  // namespace tessera::cli
