#include "train/plugin_model.hpp"

#include <map>
#include <set>

#include "base/dynamic_library.hpp"
#include "model/plugin.hpp"
#include "model/tensor_flow.hpp"
#include "nn/measured_cost.hpp"
#include "train/timed_block.hpp"

namespace tessera::train {
namespace {

template <typename Function>
Function* symbol(const DynamicLibrary& library, const char* name, const ConfigNode& plugin) {
  Function* found = nullptr;
  if (!library.find(name, found))
    throw plugin.error(text("the library has no ", name), "a library with TESSERA_PLUGIN() { ... }", "docs/tasks/own-model.md shows one");
  return found;
}

// Once in a process; it is never unloaded, since blocks of it live as long as they like.
void load_library(const std::string& path, const ConfigNode& plugin) {
  static std::set<std::string> loaded;
  if (loaded.contains(path)) return;
  std::string why;
  const DynamicLibrary library(path, why);
  if (!library)
    throw plugin.error(text("the library cannot be loaded: ", why), "a shared library built against this Tessera",
                       "build it with find_package(Tessera) of this installation");
  const std::string version = symbol<const char*()>(library, "tessera_plugin_version", plugin)();
  if (version != TESSERA_VERSION)
    throw plugin.error(text("the library was built for Tessera ", version), text("one for Tessera ", TESSERA_VERSION), "build it again");
  symbol<void()>(library, "tessera_register_plugin", plugin)();
  loaded.insert(path);
}

void check_buffers(const model::ModelSpec& model) {
  for (const model::Repeat& repeat : model.repeats)
    for (const model::ParameterSpec& parameter : repeat.block.parameters) {
      const double momentum = parameter.buffer_momentum;
      if (momentum >= 0 && momentum <= 1 && (momentum == 0 || parameter.tied_to.empty())) continue;
      throw Error(ErrorCode::invalid_config,
                  text("parameter ", parameter.name, " has buffer_momentum ", momentum, parameter.tied_to.empty() ? "" : " and is tied"),
                  {}, "0 of what has a gradient, up to 1 of a buffer, which is not tied");
    }
}

}  // namespace

model::ModelSpec read_plugin_model(const ConfigNode& section) {
  const std::string path = model::plugin_of(section).string();
  static std::map<std::string, model::ModelSpec> known;
  const std::string key = path + "\n" + section.to_yaml();
  if (const auto found = known.find(key); found != known.end()) return found->second;
  load_library(path, section.at("plugin"));
  model::ModelSpec model = model::read_registered(section);
  model.plugin = path;
  model::fill_dims(model.dims);
  model.dims["layers"] = std::max(model.dims["layers"], 1.0);
  model::tensor_flow(model);  // throws where it does not fit together
  check_buffers(model);
  const nn::Batch batch = random_batch(model, 1);
  for (model::Repeat& repeat : model.repeats) repeat.block.measured = nn::measured_cost({&repeat.block, 0, repeat.first_index}, batch);
  return known.emplace(key, std::move(model)).first->second;
}

}  // namespace tessera::train
