// internal: what a model of clicks is once it is trained: its dense weights, and the rows of its tables in a file. No servers are asked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "model/job.hpp"
#include "ps/serving_table.hpp"

namespace tessera::train {

// The rows that belong to a checkpoint of the run in `folder`: those of a serving directory, or those that servers have saved beside the
// checkpoint, which are laid out for look-ups in a file that goes at once, beside them. None: the run has saved none. Throws corrupt, io.
std::optional<ps::ServingTable> finished_rows(const std::filesystem::path& folder, const std::filesystem::path& checkpoint,
                                              const model::JobSpec& job);

struct ServingReport {
  std::int64_t step = 0;   // of the checkpoint
  std::uint64_t rows = 0;  // of the table
};

// Writes a serving directory (docs/file-formats.md) of a checkpoint of the run in `folder`: whole or not at all, in place of an earlier one
// there. `type`: how rows are stored; none: as the servers store them. Throws invalid_config for a model without tables, and for a folder
// that holds something else; not_found where the servers have saved nothing beside the checkpoint; corrupt, io.
ServingReport export_serving(const std::filesystem::path& folder, const std::filesystem::path& checkpoint, const model::JobSpec& job,
                             std::optional<ps::RowType> type, const std::filesystem::path& to);

}  // namespace tessera::train
