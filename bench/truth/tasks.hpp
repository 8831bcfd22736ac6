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
};
// Throws invalid_config for rows and parameters that do not exist.
std::vector<Task> read_tasks(const std::filesystem::path& path, const std::vector<Row>& rows);

profile::Calibration fitted(const Task& task);

}  // namespace tessera::truth
