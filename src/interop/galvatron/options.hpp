// Internal: search_dist.yaml and the model's YAML.
#pragma once

#include "base/config.hpp"
#include "interop/galvatron/galvatron.hpp"

namespace tessera::interop::galvatron {

// Throws as read_inputs does.
Settings read_settings(const std::filesystem::path& yaml, const std::vector<std::string>& overrides);

// The first of `candidates` that exists; throws not_found that lists them all. `what`: "the model's YAML".
std::filesystem::path first_existing(const std::string& what, const std::vector<std::filesystem::path>& candidates);

}  // namespace tessera::interop::galvatron
