#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

// `tessera data tokenizer|pack|split|inspect|encode|decode`: text, tokenizers and token caches from the command line.
void add_data_command(CLI::App& app);

}  // namespace tessera::cli
