// Internal. One rank's process on this host: started by a launcher, or by the agent that stands for one here.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "control/local_launcher.hpp"

namespace tessera::control {

enum class Output {
  inherited,  // the worker writes where its launcher writes
  piped       // what it writes is read with read_output
};
enum class Stream { output, errors };

// How a rank ended.
struct RankEnd {
  int rank = 0;
  int status = 0;      // as waitpid gives it
  std::string report;  // what the rank wrote to its error descriptor (report.hpp); empty: nothing
};

// The processes that were started here. Not thread-safe. The destructor kills what is left, so that nothing outlives a failure.
class WorkerProcesses {
 public:
  WorkerProcesses() = default;
  ~WorkerProcesses();
  WorkerProcesses(const WorkerProcesses&) = delete;
  WorkerProcesses& operator=(const WorkerProcesses&) = delete;

  // Starts one with `secret` (base/secret.hpp) in its environment, unless its own environment brings one. Throws io.
  void start(const WorkerCommand& worker, const std::string& secret, Output output);
  // To all that have not ended.
  void signal_all(int signal);
  bool all_ended() const;
  // The ranks that ended since the last call; everything that they wrote has been read by then.
  std::vector<RankEnd> collect();

  using Reader = std::function<void(int rank, Stream stream, std::string_view bytes)>;
  // Where what the workers write goes; call it before the first start.
  void read_output(Reader reader) { reader_ = std::move(reader); }
  // The descriptors that have news when they can be read, and reads what there is.
  std::vector<int> descriptors() const;
  void read_what_there_is();

 private:
  struct Running {
    int rank = 0;
    pid_t process = -1;
    int error_pipe = -1;
    int output_pipe = -1;  // of its stdout and its stderr, where they are piped
    int errors_pipe = -1;
    bool ended = false;
  };
  void read_from(Running& worker);

  std::vector<Running> workers_;
  Reader reader_;
};

}  // namespace tessera::control
