// Internal. A program of this host that starts agents on others: ssh, or a launcher's command.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "control/line.hpp"

namespace tessera::control {

// Dies with this process. Not thread-safe.
class Starter {
 public:
  enum class Speaks {
    line,  // its input and output are a line to the agent
    words  // its output is for people, as its errors are
  };
  // Throws not_found when there is no such program, io.
  Starter(const std::vector<std::string>& command, Speaks speaks);
  // Waits for it to end, unless it was asked to already; then asks it to, then ends it and what it has started here.
  ~Starter();
  Starter(Starter&& other) noexcept;
  Starter& operator=(Starter&&) = delete;

  // The line to the agent; once.
  Line take_line() { return std::move(line_); }
  void watch(std::vector<pollfd>& watched) const;
  // Reads what it says, a call of `hear` for each line.
  void read(const std::function<void(const std::string& line)>& hear);
  // The last line that it has said.
  const std::string& last_line() const { return last_line_; }
  // Its status as waitpid gives it, once it has ended.
  std::optional<int> status();
  // Sends it SIGTERM.
  void ask_to_end();

 private:
  pid_t process_ = -1;
  Line line_;
  comm::Descriptor words_;
  std::string begun_;
  std::string last_line_;
  std::optional<int> status_;
  bool asked_ = false;
};

// The words of a command without quotes: "ssh -F file".
std::vector<std::string> words_of(const std::string& command);
// Where a program lies that is found by its name, as a shell finds it. None where it does not.
std::optional<std::string> find_program(const std::string& name);

}  // namespace tessera::control
