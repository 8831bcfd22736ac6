#pragma once

#include <cstdint>
#include <string>

#include "model/job.hpp"

namespace CLI {
class App;
}

namespace tessera::cli {

struct InspectOptions {
  std::string file;
  std::string tokenizer;  // for token caches; may be empty
  model::RecordSpec records;
  std::int64_t samples = 3;
  bool json = false;
};

// Says what the file is and shows its beginning: a train.yaml (the samples that training begins with), text, a tokenizer or a
// token cache, which is checked whole. Throws as the readers of each do.
void inspect_data(const InspectOptions& options);

// Hangs `batch` into `tessera data`.
void add_data_batch(CLI::App& data);

}  // namespace tessera::cli
