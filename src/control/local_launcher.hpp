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
  // Makes the hint of an error that is not of a worker's own making: it was killed, or asked to stop. Called when all have ended.
  std::function<std::string()> way_on = {};
};

// Returns when all workers have ended well, which one that was asked to stop does only where nothing was left to do. Otherwise throws the
// Error of the worker that failed first: its own error where it reported one (report.hpp); peer_lost naming the rank and the signal; or
// interrupted where the workers stopped early because the user, or whoever sent one of them a signal, asked for it. While it runs SIGINT,
// SIGTERM, SIGHUP and SIGCHLD are handled here; call it from a thread that may block them, before other threads are started.
// The workers get a new secret (base/secret.hpp) in TESSERA_SECRET, the same for all, unless their own environment brings one.
void run_workers(const std::vector<WorkerCommand>& workers, const LaunchOptions& options);

// The path of a program that lies beside the running one. Throws not_found with how to build it.
std::filesystem::path sibling_program(const std::string& name);

}  // namespace tessera::control
