// Models of a user's own, from a shared library: `model: {plugin: ./libmine.so, arch: mine, ...}`.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "model/settings.hpp"

namespace tessera::model {

// Makes a model of a `model:` section whose `arch` is the reader's. What it throws names keys of the section (ConfigNode::error). Whatever
// the model has of ModelSpec::dims' common names it says itself; the others are set as for a model without attention or vocabulary.
using Reader = std::function<ModelSpec(const Settings& settings)>;

// Registration happens before a model is read; not thread-safe. Throws invalid_config where there is one of this name.
void register_arch(const std::string& arch, Reader reader);
// By a registered reader: without `measured` costs.
ModelSpec read_registered(const ConfigNode& node);

// How this process reads a model section with the key `plugin`, which tessera-worker does by loading the library, and `tessera`, which has
// no libtorch, by asking tessera-worker. Set once, before the first model is read.
using PluginReader = std::function<ModelSpec(const ConfigNode& node)>;
void set_plugin_reader(PluginReader reader);
// Throws internal where none is set.
ModelSpec read_plugin(const ConfigNode& node);
// The library that the section names; the section as YAML, whose library is named so that every folder finds it.
std::filesystem::path plugin_of(const ConfigNode& node);
std::string portable_plugin_section(const ConfigNode& node);

}  // namespace tessera::model
