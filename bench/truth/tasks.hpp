// What is fitted to what: fit.yaml.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "profile/calibration.hpp"
#include "sources.hpp"

namespace tessera::truth {

struct Task {
  profile::Calibration start;
  std::vector<std::string> parameters;
  std::vector<const Row*> rows;
  std::vector<const Row*> priced;  // all rows of its accelerator and stack, which it is compared with
};
// Throws invalid_config for rows and parameters that do not exist.
std::vector<Task> read_tasks(const std::filesystem::path& path, const std::vector<Row>& rows);

// With what its rows reach, those that it is compared with among them.
profile::Calibration fitted(const Task& task);

}  // namespace tessera::truth
