// Tables of measured steps: comma-separated, the first line names the columns, quotes are doubled.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace tessera::calibrate {

using Cells = std::map<std::string, std::string>;  // by column

// Throws io when the file cannot be read, invalid_config when a line has more cells than the head.
std::vector<Cells> read_table(const std::filesystem::path& path);

// Empty where the row has no such column.
std::string cell(const Cells& row, const std::string& column);
// What the cell begins with; `otherwise` where that is no number, or one beyond 1e15.
double number(const Cells& row, const std::string& column, double otherwise);

bool contains(const std::string& text, const std::string& part);
std::string lower(std::string text);

}  // namespace tessera::calibrate
