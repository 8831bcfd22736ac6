#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>

namespace tessera::log {
namespace {

spdlog::level::level_enum level_from_environment(spdlog::level::level_enum fallback) {
  const char* name = std::getenv("TESSERA_LOG");
  return name == nullptr || *name == '\0' ? fallback : spdlog::level::from_str(name);
}

struct State {
  std::shared_ptr<spdlog::sinks::stderr_sink_mt> console = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  std::shared_ptr<spdlog::logger> logger;
  std::mutex mutex;  // guards the list of sinks and the pattern
  std::string prefix;

  State() {
    console->set_level(level_from_environment(spdlog::level::warn));
    logger = std::make_shared<spdlog::logger>("tessera", console);
    logger->set_level(spdlog::level::trace);
    logger->flush_on(spdlog::level::info);
    set_patterns();
  }
  void set_patterns() {
    console->set_pattern(prefix + "%l: %v");
    for (auto& sink : logger->sinks())
      if (sink != console) sink->set_pattern("%Y-%m-%d %H:%M:%S.%e " + prefix + "%l: %v");
  }
};

State& state() {
  static State instance;
  return instance;
}

}  // namespace

void set_file(const std::filesystem::path& path) {
  auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string());
  sink->set_level(level_from_environment(spdlog::level::info));
  const std::lock_guard lock(state().mutex);
  state().logger->sinks() = {state().console, sink};
  state().set_patterns();
}

void set_rank(int rank) {
  const std::lock_guard lock(state().mutex);
  state().prefix = rank < 0 ? std::string() : "[rank " + std::to_string(rank) + "] ";
  state().set_patterns();
}

void set_stderr_level(Level level) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  state().console->set_level(levels[static_cast<int>(level)]);
}

void debug(const std::string& message) { state().logger->log(spdlog::level::debug, spdlog::string_view_t(message)); }
void info(const std::string& message) { state().logger->log(spdlog::level::info, spdlog::string_view_t(message)); }
void warning(const std::string& message) { state().logger->log(spdlog::level::warn, spdlog::string_view_t(message)); }
void error(const std::string& message) { state().logger->log(spdlog::level::err, spdlog::string_view_t(message)); }
void flush() { state().logger->flush(); }

}  // namespace tessera::log
