// Starts the workers of one job as processes of this host and watches them to their end.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/units.hpp"

namespace tessera::control {

// One process to start. It gets its own stderr and stdout from the launcher, no stdin, and is killed when the launcher dies.
struct WorkerCommand {
  int rank = 0;
  std::vector<std::string> arguments;                            // arguments[0] is the program
  std::vector<std::pair<std::string, std::string>> environment;  // added to the launcher's
  std::vector<int> processors;                                   // to run on, as the operating system counts; empty: all
};

struct LaunchOptions {
  // After one worker has failed, the others get this long to end by themselves before they are killed.
  Seconds grace = Seconds(10);
  // Called once when the user first asks to stop (Ctrl-C, SIGTERM); the workers have been told then. A second request
  // kills them.
  std::function<void()> on_stop_request;
  // The hint of an error that is not of a worker's own making: it was killed, or the user asked twice to stop.
  std::string way_on = {};
};

// Returns when all workers have ended well; true when the user asked to stop. Otherwise throws the Error of the worker
// that failed first: its own error where it reported one through the descriptor in TESSERA_ERROR_FD, or peer_lost naming
// the rank and the signal, or interrupted where the user asked to stop a worker that has nothing to save. While it runs SIGINT, SIGTERM and
// SIGCHLD are handled here; call it from a thread that may block them, before other threads are started.
// The workers get a new secret (base/secret.hpp) in TESSERA_SECRET, the same for all, unless their own environment brings one.
bool run_workers(const std::vector<WorkerCommand>& workers, const LaunchOptions& options);

// From now on an error of this process, or of the program that it becomes, goes to this descriptor as a JSON object and a newline.
void report_errors_to(int descriptor);

// Called by a worker that fails: hands the error to the launcher, or prints it when there is none.
void report_error(const Error& error);

// The path of a program that lies beside the running one. Throws not_found with how to build it.
std::filesystem::path sibling_program(const std::string& name);

}  // namespace tessera::control
