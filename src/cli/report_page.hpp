// Internal: the page that all reports have: one file that refers to nothing outside itself.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"

namespace tessera::cli {

struct Page {
  std::string title;            // plain text
  std::string body;             // HTML: what stands below the title, the line "subject" and the list "tiles"
  std::string data_id;          // of the element that holds the data
  nlohmann::ordered_json data;  // `data` in the script
  std::string script;           // runs behind report_tools.hpp
};
std::string report_page(const Page& page);

// JSON that cannot end the script element that it stands in, and the escaping of plain text.
std::string script_safe(const nlohmann::ordered_json& data);
std::string html_escaped(const std::string& text);

}  // namespace tessera::cli
