// The one exception type of Tessera, and what it becomes at the edges.
#pragma once

#include <exception>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

// What kind of failure this is; decides the exit code and, later, the RPC status.
enum class ErrorCode {
  invalid_config,      // the user's file or flag is wrong
  not_found,           // a file, run, tensor or host that should exist does not
  corrupt,             // a file exists but its content fails a check
  io,                  // the operating system refused: disk full, permission, port in use
  resource_exhausted,  // no plan fits, or memory ran out
  peer_lost,           // another rank died or hung up
  deadline_exceeded,   // a wait ran into its deadline
  interrupted,         // the user asked to stop
  internal             // a defect in Tessera
};

// Where it happened. Empty or negative fields are unknown and are not printed.
struct Where {
  std::string file;
  int line = 0;    // 1-based
  int column = 0;  // 1-based
  int rank = -1;
  std::string block;
};

// Four parts: what happened, where, what was expected, what to do. what() is all of them on one or two lines.
// What was wrong beside it, in the same file, may stand behind it. Immutable after construction, hence safe to share between threads.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message, Where where = {}, std::string expected = {}, std::string hint = {});
  // The first of `several` (at least one, none with others behind it) with the others behind it.
  explicit Error(std::vector<Error> several);

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const Where& where() const noexcept { return where_; }
  const std::string& expected() const noexcept { return expected_; }
  const std::string& hint() const noexcept { return hint_; }
  // For several errors: the text of each, on lines of its own.
  const char* what() const noexcept override { return text_.c_str(); }
  // This error alone, then those behind it.
  std::vector<Error> each() const;

 private:
  ErrorCode code_;
  std::string message_;
  Where where_;
  std::string expected_;
  std::string hint_;
  std::string text_;
  std::vector<Error> others_;
};

// "invalid_config", "peer_lost", ... as they stand in JSON.
const char* name_of(ErrorCode code);
// Process exit code: 2 for what the user typed, 3 not found or corrupt, 4 io, 5 resources, 6 peers and deadlines,
// 75 interrupted, 70 internal. Never 0.
int exit_code(ErrorCode code);
// {"error": {"code", "message", "file", "line", "rank", "block", "expected", "hint"}} on one line; of several errors also
// "errors", all of them in a list.
std::string to_json(const Error& error);

// Joins anything streamable into one string: text("rank ", 3, " left").
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return std::move(out).str();
}

// Throws an internal Error when a condition that our own code guarantees does not hold.
void ensure(bool condition, const std::string& message);
// Throws an io Error with errno's text: "cannot write runs/a/log.txt: No space left on device".
[[noreturn]] void throw_errno(const std::string& action, const std::string& path, int error_number);

}  // namespace tessera
