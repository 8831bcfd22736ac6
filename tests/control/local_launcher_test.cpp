#include "control/local_launcher.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "base/clock.hpp"
#include "base/expect_error.hpp"
#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::control {
namespace {

using tessera::testing::error_of;
using ::testing::HasSubstr;

WorkerCommand shell(int rank, const std::string& script) {
  WorkerCommand command;
  command.rank = rank;
  command.arguments = {"/bin/sh", "-c", script};
  return command;
}

std::string report(const std::string& code, const std::string& message) {
  return "printf '{\"error\": {\"code\": \"" + code + "\", \"message\": \"" + message + "\"}}' >&$TESSERA_ERROR_FD; exit 9";
}

// Sends the signal to this process, which run_workers watches, once the file is there.
std::thread ask_to_stop(const std::filesystem::path& file) {
  return std::thread([file] {
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &stop, nullptr);  // it is for run_workers to take
    while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    ::kill(::getpid(), SIGTERM);
  });
}

TEST(LocalLauncher, ReturnsWhenAllHaveEndedWell) {
  const TemporaryFolder folder;
  const std::string mine = (folder.path() / "rank").string();
  WorkerCommand first = shell(0, "echo $WORD > " + mine + "-0");
  first.environment = {{"WORD", "said"}};
  run_workers({first, shell(1, "true")}, {});
  EXPECT_EQ(read_whole(mine + "-0"), "said\n");
}

// All workers of a launch have one secret, another one than those of the next; the command lines do not show it.
TEST(LocalLauncher, GivesTheWorkersOfALaunchASecret) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "secret").string();
  const auto said_by = [&](int rank) { return shell(rank, text("echo $TESSERA_SECRET > ", file, "-", rank)); };
  run_workers({said_by(0), said_by(1)}, {});
  const std::string secret = read_whole(file + "-0");
  EXPECT_EQ(secret.size(), 65U);
  EXPECT_EQ(read_whole(file + "-1"), secret);
  run_workers({said_by(0)}, {});
  EXPECT_NE(read_whole(file + "-0"), secret);
  WorkerCommand given = said_by(0);
  given.environment = {{"TESSERA_SECRET", "the user's own"}};
  run_workers({given}, {});
  EXPECT_EQ(read_whole(file + "-0"), "the user's own\n");
}

TEST(LocalLauncher, LetsThreadsThatWaitSleepSoonUnlessTheUserSaysHowTheyWait) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "turns").string();
  ::unsetenv("GOMP_SPINCOUNT");
  ::unsetenv("OMP_WAIT_POLICY");
  const auto turns_in = [&](std::vector<std::pair<std::string, std::string>> environment) {
    WorkerCommand worker = shell(0, "echo $GOMP_SPINCOUNT > " + file);
    worker.environment = std::move(environment);
    run_workers({worker}, {});
    return read_whole(file);
  };
  EXPECT_EQ(turns_in({}), "1000\n");
  EXPECT_EQ(turns_in({{"GOMP_SPINCOUNT", "7"}}), "7\n");
  EXPECT_EQ(turns_in({{"OMP_WAIT_POLICY", "active"}}), "\n");
}

TEST(LocalLauncher, ThrowsTheErrorThatAWorkerReports) {
  const Error error = error_of([] { run_workers({shell(0, "true"), shell(1, report("io", "the disk is full"))}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::io);
  EXPECT_EQ(error.message(), "the disk is full");
  EXPECT_EQ(error.where().rank, 1);
}

TEST(LocalLauncher, PrefersTheFailureThatOthersOnlySuffer) {
  const TemporaryFolder folder;
  const std::string first = (folder.path() / "first").string();
  // Rank 0 is the first to end, of what befell rank 1.
  const Error error = error_of([&] {
    run_workers({shell(0, "touch " + first + "; " + report("peer_lost", "rank 1 is gone")),
                 shell(1, "while [ ! -e " + first + " ]; do sleep 0.01; done; sleep 0.3; " + report("corrupt", "a flipped bit"))},
                {});
  });
  EXPECT_EQ(error.code(), ErrorCode::corrupt);
}

TEST(LocalLauncher, NamesTheRankAndTheSignalOfOneThatWasKilled) {
  const Error error = error_of([] { run_workers({shell(3, "kill -9 $$")}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_THAT(error.message(), HasSubstr("rank 3 was ended by signal 9"));
}

TEST(LocalLauncher, SaysWhatCannotBeStarted) {
  WorkerCommand command;
  command.arguments = {"/nowhere/tessera-worker"};
  const Error error = error_of([&] { run_workers({command}, {}); });
  EXPECT_EQ(error.code(), ErrorCode::not_found);
  EXPECT_THAT(error.message(), HasSubstr("/nowhere/tessera-worker"));
}

TEST(LocalLauncher, KillsThoseThatDoNotEndAfterAFailure) {
  const Seconds begin = real_clock().now();
  const Error error = error_of([] {
    run_workers({shell(0, "trap '' TERM; exec sleep 60"), shell(1, "exit 7")}, {.grace = Seconds(0.2), .on_stop_request = {}});
  });
  EXPECT_THAT(error.message(), HasSubstr("exit code 7"));
  EXPECT_LT((real_clock().now() - begin).value, 30);
}

// What a worker does that is asked to stop.
std::string when_asked(const std::filesystem::path& ready, const std::string& what) {
  return "trap '" + what + "' TERM; touch " + ready.string() + "; while true; do sleep 0.01; done";
}
const std::string kStopped =
    "{\"error\": {\"code\": \"interrupted\", \"message\": \"stopped after step 3 of 40\", \"hint\": \"of a worker\"}}";

TEST(LocalLauncher, AsksWorkersToStopAndSaysWhereTheyDid) {
  const TemporaryFolder folder;
  const auto ready = folder.path() / "ready";
  const auto said = folder.write("said", kStopped);
  int asked = 0;
  std::thread user = ask_to_stop(ready);
  const std::string script = when_asked(ready, "cat " + said.string() + " >&$TESSERA_ERROR_FD; exit 75");
  const Error error =
      error_of([&] { run_workers({shell(0, script)}, {.on_stop_request = [&] { ++asked; }, .way_on = [] { return "go on"; }}); });
  user.join();
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(error.code(), ErrorCode::interrupted);
  EXPECT_EQ(std::string(error.what()), "stopped after step 3 of 40\n  go on");
}

TEST(LocalLauncher, AWorkerThatIsAskedToStopMayHaveCompleted) {
  const TemporaryFolder folder;
  const auto ready = folder.path() / "ready";
  std::thread user = ask_to_stop(ready);
  run_workers({shell(0, when_asked(ready, "exit 0"))}, {});
  user.join();
}

// A signal to one worker stops them all; the others may say that they lost it, and only a crash says more.
TEST(LocalLauncher, PrefersACrashToAStopAndAStopToALostPeer) {
  const TemporaryFolder folder;
  const auto said = folder.write("said", kStopped);
  const WorkerCommand lost = shell(0, report("peer_lost", "rank 1 is gone"));
  const WorkerCommand stopped = shell(1, "sleep 0.2; cat " + said.string() + " >&$TESSERA_ERROR_FD; exit 75");
  EXPECT_EQ(error_of([&] { run_workers({lost, stopped}, {}); }).message(), "stopped after step 3 of 40");
  const WorkerCommand crashed = shell(2, "sleep 0.4; kill -SEGV $$");
  EXPECT_THAT(error_of([&] { run_workers({lost, stopped, crashed}, {}); }).message(), HasSubstr("rank 2 was ended by signal 11"));
}

TEST(LocalLauncher, AWorkerThatHandlesNoSignalIsStoppedAndNotLost) {
  const TemporaryFolder folder;
  const auto ready = folder.path() / "ready";
  std::thread user = ask_to_stop(ready);
  const Error error = error_of([&] { run_workers({shell(0, "touch " + ready.string() + "; exec sleep 60")}, {}); });
  user.join();
  EXPECT_EQ(error.code(), ErrorCode::interrupted);
}

TEST(LocalLauncher, HoldsAWorkerToItsProcessors) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "allowed";
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  int last = 0;
  for (int processor = 0; processor < CPU_SETSIZE; ++processor)
    if (CPU_ISSET(static_cast<std::size_t>(processor), &all)) last = processor;
  WorkerCommand command = shell(0, "grep Cpus_allowed_list /proc/self/status > " + file.string());
  command.processors = {last};
  run_workers({command}, {});
  EXPECT_EQ(read_whole(file), "Cpus_allowed_list:\t" + std::to_string(last) + "\n");
}

}  // namespace
}  // namespace tessera::control
