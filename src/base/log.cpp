#include "base/log.hpp"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::log {
namespace {

// Lines kept for a file that is not set yet; a process that never sets one keeps no more.
constexpr std::size_t kMostPending = 1000;

spdlog::level::level_enum level_from_environment(spdlog::level::level_enum fallback) {
  const char* name = std::getenv("TESSERA_LOG");
  return name == nullptr || *name == '\0' ? fallback : spdlog::level::from_str(name);
}

spdlog::level::level_enum level_of(Level level) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  return levels[static_cast<int>(level)];
}

struct Line {
  spdlog::log_clock::time_point time;
  spdlog::level::level_enum level;
  std::string message;
};

struct State {
  spdlog::logger console{"console", std::make_shared<spdlog::sinks::stderr_sink_mt>()};
  std::mutex mutex;  // guards what follows
  std::unique_ptr<spdlog::logger> file;
  std::vector<Line> pending;
  int silences = 0;

  State() {
    console.set_level(level_from_environment(spdlog::level::warn));
    console.set_pattern("%l: %v");
  }
  void to_file(Line line) {
    if (file)
      file->log(line.time, {}, line.level, spdlog::string_view_t(line.message));
    else if (pending.size() < kMostPending)
      pending.push_back(std::move(line));
  }
};

State& state() {
  static State instance;
  return instance;
}

void say(Level level, const std::string& message) {
  const std::lock_guard lock(state().mutex);
  if (state().silences > 0) return;
  state().console.log(level_of(level), spdlog::string_view_t(message));
  state().to_file({spdlog::log_clock::now(), level_of(level), message});
}

}  // namespace

void set_file(const std::filesystem::path& path) {
  auto logger = std::make_unique<spdlog::logger>("file", std::make_shared<spdlog::sinks::basic_file_sink_mt>(path.string()));
  logger->set_level(level_from_environment(spdlog::level::info));
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %l: %v");
  logger->flush_on(spdlog::level::info);
  const std::lock_guard lock(state().mutex);
  state().file = std::move(logger);
  for (Line& line : std::exchange(state().pending, {})) state().to_file(std::move(line));
}

void debug(const std::string& message) { say(Level::debug, message); }
void info(const std::string& message) { say(Level::info, message); }
void warning(const std::string& message) { say(Level::warning, message); }
void error(const std::string& message) { say(Level::error, message); }

void show(const std::string& line) {
  const std::string whole = line + "\n";
  std::fwrite(whole.data(), 1, whole.size(), stderr);
  record(Level::info, line);
}

void record(Level level, const std::string& message) {
  const std::lock_guard lock(state().mutex);
  state().to_file({spdlog::log_clock::now(), level_of(level), message});
}

Silence::Silence() {
  const std::lock_guard lock(state().mutex);
  ++state().silences;
}
Silence::~Silence() {
  const std::lock_guard lock(state().mutex);
  --state().silences;
}

void flush() {
  const std::lock_guard lock(state().mutex);
  state().console.flush();
  if (state().file) state().file->flush();
}

}  // namespace tessera::log
