// A run as one self-contained web page: its facts, the measured and the predicted timeline of a step one above the other, its instructions
// by kind, its ranks with their memory, and the curves of loss, throughput and gradient norm.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace tessera::cli {

struct RunReport {
  std::string page;
  std::vector<std::string> notes;  // what is not on the page, and why; the page says the same
};

// Simulates the run's plan for the predicted timeline, by the prices of `profile`, or where that is empty of the profile of this run that
// is in this host's cache. Without either, or without a file of the run's that it needs, the page has the measured half alone. Throws what
// observe::summarize throws, and what reading a named profile throws.
RunReport run_report(const std::filesystem::path& run, const std::filesystem::path& profile);

}  // namespace tessera::cli
