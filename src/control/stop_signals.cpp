#include "control/stop_signals.hpp"

#include <unistd.h>
#include <csignal>
#include <string>

#include "control/report.hpp"

namespace tessera::control {
namespace {

// What the handlers use. Written before a handler that reads it is installed.
std::atomic<bool> asked = false;
std::string report;
int report_descriptor = -1;
int code = 0;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler sets it");

void end_now(int /*signal*/) {
  [[maybe_unused]] const ssize_t written = ::write(report_descriptor, report.data(), report.size());
  ::_exit(code);
}

void remember(int signal) {
  if (!asked.exchange(true) || signal != SIGINT) return;
  std::signal(SIGINT, SIG_DFL);
  std::raise(SIGINT);
}

void install(void (*handler)(int)) {
  for (const int signal : {SIGINT, SIGHUP, SIGTERM}) {
    struct sigaction before {};
    const bool ignored = ::sigaction(signal, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
    if (signal == SIGTERM || !ignored) std::signal(signal, handler);
  }
}

}  // namespace

void end_when_asked(const Error& error) {
  report_descriptor = descriptor_of_reports();
  report = text_of_report(error);
  code = exit_code(error.code());
  install(end_now);
}

const std::atomic<bool>& stop_when_asked() {
  install(remember);
  return asked;
}

}  // namespace tessera::control
