// Which checkpoint of a run has the lowest validation loss, as best.json says it. No torch here.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace tessera::checkpoint {

struct Best {
  std::int64_t step = 0;
  double validation_loss = 0;  // mean per token, in nats; finite
};

// {"step": 50, "validation_loss": 3.21} and a newline.
std::string text_of(const Best& best);
// Throws corrupt, naming `path`.
Best parse_best(const std::string& text, const std::filesystem::path& path);

}  // namespace tessera::checkpoint
