// A logging front that includes no logging library, so that files that see torch can log too (torch ships another fmt).
#pragma once

#include <filesystem>
#include <string>

namespace tessera::log {

enum class Level { debug, info, warning, error };

// Lines go to stderr, and to a file as well once one is set; several processes may append to one file. What is said before goes there
// too. Thread-safe. Level from TESSERA_LOG (debug, info, warning, error) or, if unset, warning on stderr and info in the file.
void set_file(const std::filesystem::path& path);

void debug(const std::string& message);
void info(const std::string& message);
void warning(const std::string& message);
void error(const std::string& message);

// For people: to stderr as it is, with a newline, and to the file.
void show(const std::string& line);
// To the file alone: what was shown by other means.
void record(Level level, const std::string& message);

// While one lives, nothing is said or written: what this process would say, another one has said.
class Silence {
 public:
  Silence();
  ~Silence();
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;
};

// Called at exit and before a process ends on purpose.
void flush();

}  // namespace tessera::log
