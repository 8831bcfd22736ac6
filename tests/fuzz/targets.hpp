// The readers of files that others write and of messages that other processes send, each with what must hold for any content.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/error.hpp"

namespace tessera::fuzz {

// Something that holds for all inputs did not hold for one.
class Defect : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Target {
  std::string name;
  std::vector<std::string> seeds;                                 // right files
  std::vector<ErrorCode> refusals = {ErrorCode::invalid_config};  // the only codes with which the reader may refuse
  // Reads; asks of what was read all that later rooms ask before anything runs; writes and reads it again. Throws Error when the
  // input is refused, Defect when what was read is not what is written.
  std::function<void(const std::string&)> read;
  std::int64_t short_run = 1500;  // inputs among the tests
  // A mutation works on `inner(file)`, which `outer` makes a file again: the JSON inside a binary frame. Empty: the file itself.
  std::function<std::string(const std::string&)> inner = {};
  std::function<std::string(const std::string&)> outer = {};
};

std::vector<std::string> target_names();
// Seeds come from the repository and from what the readers' own writers write. Throws not_found.
Target target_called(const std::string& name);

enum class Verdict { read, refused, defect };
struct Judgement {
  Verdict verdict = Verdict::read;
  std::string what;  // of the error or defect
};
// Catches all that can be caught.
Judgement judge(const Target& target, const std::string& input);

}  // namespace tessera::fuzz
