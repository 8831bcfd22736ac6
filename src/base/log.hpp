// A logging front that includes no logging library, so that files that see torch can log too (torch ships another fmt).
#pragma once

#include <filesystem>
#include <string>

namespace tessera::log {

enum class Level { debug, info, warning, error };

// Lines go to stderr, and to a file as well once one is set. `rank` (if >= 0) is put in front of each line. Thread-safe.
// Level from TESSERA_LOG (debug, info, warning, error) or, if unset, warning on stderr and info in the file.
void set_file(const std::filesystem::path& path);
void set_rank(int rank);
void set_stderr_level(Level level);

void debug(const std::string& message);
void info(const std::string& message);
void warning(const std::string& message);
void error(const std::string& message);
// Called at exit and before a process ends on purpose.
void flush();

}  // namespace tessera::log
