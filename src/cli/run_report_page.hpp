// Internal: the page around what is said of a run.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tessera::cli {

std::string run_report_page(const std::string& title, const nlohmann::ordered_json& data);

}  // namespace tessera::cli
