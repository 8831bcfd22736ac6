// The published tables, and what is known about them beyond their columns.
#pragma once

#include <filesystem>
#include <vector>

#include "calibrate/row.hpp"

namespace tessera::truth {

using calibrate::Cells;
using calibrate::Row;

// All rows of the tables of step times in a folder, by source. Tables of other things are left out.
std::vector<Row> read_rows(const std::filesystem::path& folder);

}  // namespace tessera::truth
