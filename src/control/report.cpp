#include "control/report.hpp"

#include <unistd.h>
#include <cstdlib>

#include "base/log.hpp"

namespace tessera::control {

void report_errors_to(int descriptor) { ::setenv(kErrorDescriptor, std::to_string(descriptor).c_str(), 1); }

std::string text_of_report(const Error& error) {
  if (std::getenv(kErrorDescriptor) != nullptr) return to_json(error) + "\n";
  return text(error.code() == ErrorCode::interrupted ? "" : "error: ", error.what(), "\n");
}

int descriptor_of_reports() {
  const char* descriptor = std::getenv(kErrorDescriptor);
  return descriptor != nullptr ? std::atoi(descriptor) : STDERR_FILENO;
}

void report_error(const Error& error) {
  const std::string report = text_of_report(error);
  // A launcher writes what it hears into the run's log itself.
  if (std::getenv(kErrorDescriptor) == nullptr) log::record(log::Level::error, error.what());
  if (::write(descriptor_of_reports(), report.data(), report.size()) >= 0 || descriptor_of_reports() == STDERR_FILENO) return;
  // Where a standard output takes nothing, the error is not lost.
  const std::string plain = text("error: ", error.what(), "\n");
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, plain.data(), plain.size());
}

}  // namespace tessera::control
