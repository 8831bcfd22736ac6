// What the ranks of other hosts write, on this terminal and in the run's folder.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "control/worker_process.hpp"

namespace tessera::control {

// "rank-003.txt"
std::string rank_log_name(int rank);

// Rank 0 is shown as it would be if it ran here: its stderr as it is, where that is a terminal with the line that renews itself, and its
// stdout. Of the others, and of whoever else has something to say, every line is shown on stderr behind "[rank 3 @ node-b] ". What each
// rank writes is also kept in LOGS/rank-003.txt, as lines without what renews them; files that are there are appended to. Nothing here
// waits for a terminal or a pipe that takes nothing: of what it cannot take, the oldest is left out. Not thread-safe.
class RankOutput {
 public:
  using Write = std::function<std::size_t(Stream stream, std::string_view bytes)>;  // returns how much was taken, without waiting
  using Record = std::function<void(const std::string& line)>;                      // of lines that rank 0 does not record itself
  struct Options {
    std::vector<std::string> hosts;             // by rank
    std::optional<std::filesystem::path> logs;  // the folder, which is made; none: nothing is kept
    bool live = false;                          // stderr is a terminal on which lines can be rewritten
    Write write;                                // default: this process's stdout and stderr
    Record record;                              // default: the log (base/log.hpp)
  };
  // Throws io when the folder takes no files.
  explicit RankOutput(Options options);
  // Shows what was not shown, for as long as somebody takes it.
  ~RankOutput();

  void wrote(int rank, Stream stream, std::string_view bytes);
  // The rank has ended: what it wrote last need not end with a newline. `how` is kept, and not shown.
  void ended(int rank, const std::string& how = {});
  // A line of somebody else's: "[srun] ...".
  void say(const std::string& who, const std::string& line);
  // Shows what could not be shown before.
  void flush();

 private:
  struct Lines {
    std::string begun;  // of a line that has no end yet
  };
  void show(Stream stream, std::string_view bytes);
  void show_line(const std::string& line);
  void keep(int rank, const std::string& line);
  std::filesystem::path log_of(int rank) const;
  void take(int rank, Stream stream, const std::string& line);

  Options options_;
  std::vector<Lines> errors_;  // by rank
  std::vector<Lines> output_;
  std::string waiting_[2];  // by stream
  bool in_live_line_ = false;
};

}  // namespace tessera::control
