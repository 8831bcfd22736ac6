// Rows of a table that was saved as those that another table begins with: their values, and what they know of how often they were seen
// (Statistics) where both tables count it. The optimizer begins anew, and so do keys that wait to be admitted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "ps/client.hpp"

namespace tessera::ps {

struct SavedRows {
  std::filesystem::path folder;  // of Client::begin_save
  std::string table;             // its name there
};

// Throws not_found where the folder has no such table; and invalid_config where `table` could not take its rows, as they have another
// dimension or type, or as those of one of the two grow. Reads the first block of each file alone: corrupt, io.
void check_first_rows(const SavedRows& from, const TableSpec& table);

// Gives the rows to a table of the client that has none, whichever servers hold it, as messages that servers copy to their backups and
// write to their logs. This process reads the files; all are checked before a row is sent. Returns how many rows it has sent, of which one
// that has changed between two saves counts as often. Throws as check_first_rows does, for damage anywhere in the files, and as
// Client::put: then the table has some of the rows.
std::uint64_t put_first_rows(Client& client, Client::TableId table, const SavedRows& from);

}  // namespace tessera::ps
