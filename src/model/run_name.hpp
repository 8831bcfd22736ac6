// Runs as people name them: NAME for the folder runs/NAME, the path of a run's folder, or one of them with a checkpoint, RUN@STEP.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace tessera::model {

inline constexpr const char* kRunsFolder = "runs";

struct RunName {
  std::filesystem::path folder;
  std::optional<std::int64_t> step;  // of a checkpoint; none: the newest usable one
};

// The folder of the run `name` in `runs`, or at that path. Throws not_found, with the nearest name.
std::filesystem::path find_run_folder(const std::string& name, const std::filesystem::path& runs = kRunsFolder);

// RUN or RUN@STEP. Does not look whether the run has the checkpoint. Throws not_found, or invalid_config for a step that is no number.
RunName find_run(const std::string& words, const std::filesystem::path& runs = kRunsFolder);

}  // namespace tessera::model
