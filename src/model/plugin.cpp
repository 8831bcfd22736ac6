#include "model/plugin.hpp"

#include "model/yaml_path.hpp"

namespace tessera::model {
namespace {

PluginReader& plugin_reader() {
  static PluginReader reader;
  return reader;
}

}  // namespace

void set_plugin_reader(PluginReader reader) { plugin_reader() = std::move(reader); }

ModelSpec read_plugin(const ConfigNode& node) {
  ensure(static_cast<bool>(plugin_reader()), "this program reads no plug-ins");
  return plugin_reader()(node);
}

std::filesystem::path plugin_of(const ConfigNode& node) {
  const ConfigNode plugin = node.at("plugin");
  const std::filesystem::path path = std::filesystem::absolute(path_of(plugin)).lexically_normal();
  if (!std::filesystem::is_regular_file(path)) throw plugin.error(text("there is no file ", path.string()), "a shared library");
  return path;
}

std::string portable_plugin_section(const ConfigNode& node) {
  return ConfigNode::parse(node.to_yaml(), node.file()).with_override("plugin", quoted(plugin_of(node))).to_yaml();
}

}  // namespace tessera::model
