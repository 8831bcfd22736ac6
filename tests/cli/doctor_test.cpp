// What the doctor finds, on this host and on hosts that lack something.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/command_helper.hpp"
#include "cli/doctor_checks.hpp"

namespace tessera::cli {
namespace {

using testing::HasSubstr;

TEST(Doctor, ReportsEverySubjectAndItsExitCodeSaysWhetherThisHostIsReady) {
  const CommandResult result = run_tessera({"doctor", "--json"});
  const nlohmann::json report = nlohmann::json::parse(result.out);
  EXPECT_EQ(result.exit_code, report.at("ready").get<bool>() ? 0 : 1);
  std::vector<std::string> names;
  bool missing = false;
  for (const auto& check : report.at("checks")) {
    names.push_back(check.at("name"));
    missing = missing || check.at("status") == "missing";
    EXPECT_FALSE(check.at("value").get<std::string>().empty()) << check;
    EXPECT_EQ(check.at("status") == "ok", !check.contains("advice")) << check;
  }
  EXPECT_EQ(report.at("ready").get<bool>(), !missing);
  EXPECT_THAT(names, testing::IsSupersetOf({"cpu", "instructions", "memory", "shared memory", "huge pages", "open files", "disk",
                                            "network lo", "accelerators", "ucx", "tessera-worker", "slurm", "runs", "cache"}));
}

TEST(Doctor, TableSaysTheSameAsJson) {
  const CommandResult table = run_tessera({"doctor"});
  const nlohmann::json report = nlohmann::json::parse(run_tessera({"doctor", "--json"}).out);
  EXPECT_THAT(table.out, HasSubstr(report.at("ready").get<bool>() ? "ready to train here" : "missing"));
  for (const auto& check : report.at("checks")) EXPECT_THAT(table.out, HasSubstr(check.at("name").get<std::string>()));
}

TEST(Doctor, SharedMemoryThatIsNotThereIsNamed) {
  const Finding finding = check_shared_memory("/no/such/mount");
  EXPECT_EQ(finding.status, Status::absent);
  EXPECT_THAT(finding.value, HasSubstr("/no/such/mount"));
  EXPECT_THAT(finding.advice, HasSubstr("mount"));
}

TEST(Doctor, SaysWhereWorkersGetNoHugePages) {
  const TemporaryFolder folder;
  const auto mode = folder / "enabled";
  const auto found = [&](const char* modes) {
    std::ofstream(mode) << modes << "\n";
    return check_huge_pages(mode);
  };
  EXPECT_EQ(found("always [madvise] never").status, Status::ok);
  EXPECT_EQ(found("[always] madvise never").status, Status::ok);
  const Finding never = found("always madvise [never]");
  EXPECT_EQ(never.status, Status::absent);
  EXPECT_THAT(never.advice, HasSubstr("echo madvise > " + mode.string()));
  EXPECT_EQ(check_huge_pages(folder / "none").status, Status::absent);
}

TEST(Doctor, FindsTheWorkersVersion) {
  const TemporaryFolder folder;
  const auto worker = write_program(folder, "tessera-worker", "#!/bin/sh\necho \"tessera-worker 9.9.9, torch 1.2.3\"\n");
  const Finding finding = check_worker(worker, Seconds(30));
  EXPECT_EQ(finding.status, Status::ok);
  EXPECT_THAT(finding.value, HasSubstr("torch 1.2.3"));
}

TEST(Doctor, AWorkerThatFailsIsMissingAndItsWordsAreShown) {
  const TemporaryFolder folder;
  const auto worker = write_program(folder, "tessera-worker", "#!/bin/sh\necho 'libtorch.so: cannot open' >&2\nexit 127\n");
  const Finding finding = check_worker(worker, Seconds(30));
  EXPECT_EQ(finding.status, Status::missing);
  EXPECT_THAT(finding.value, HasSubstr("libtorch.so: cannot open"));
  EXPECT_FALSE(finding.advice.empty());
}

TEST(Doctor, AWorkerThatHangsIsGivenUpAndEnded) {
  const TemporaryFolder folder;
  const auto worker =
      write_program(folder, "tessera-worker", "#!/bin/sh\necho $$ > " + (folder.path() / "pid").string() + "\nexec sleep 600\n");
  const Finding finding = check_worker(worker, Seconds(2));
  EXPECT_EQ(finding.status, Status::missing);
  EXPECT_THAT(finding.value, HasSubstr("did not answer within"));
  pid_t pid = 0;
  std::ifstream(folder.path() / "pid") >> pid;
  ASSERT_GT(pid, 0);
  EXPECT_EQ(kill(pid, 0), -1) << "the worker still runs";
}

// /proc takes no files, whoever asks.
TEST(Doctor, AFolderThatTakesNoFilesIsNoPlaceToTrain) {
  const CommandResult result = run_tessera({"doctor"}, {"/proc", {}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("/proc takes no files: "));
  EXPECT_THAT(result.out, HasSubstr("change to a folder that you may write to"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("ready to train here")));
}

TEST(Doctor, LeavesNothingBehind) {
  const TemporaryFolder folder;
  EXPECT_EQ(check_writable("runs", folder / "runs" / "deep", "").status, Status::ok);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

// `train` starts the worker that lies beside it, and no other.
TEST(Doctor, AWorkerElsewhereDoesNotCount) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder / "bin");
  std::filesystem::create_directory(folder / "path");
  std::filesystem::copy_file(tessera_path(), folder / "bin" / "tessera");
  write_program(folder, "path/tessera-worker", "#!/bin/sh\necho tessera-worker 9.9.9\n");
  const std::string path = (folder / "path").string() + ":" + std::getenv("PATH");
  const CommandResult result = run_command({(folder / "bin" / "tessera").string(), "doctor"}, {folder.path(), {{"PATH", path}}});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.out, HasSubstr("not beside tessera"));
  EXPECT_THAT(result.out, testing::Not(HasSubstr("ready to train here")));
}

TEST(Doctor, NoWorkerAtAllSaysHowToGetOne) {
  const Finding finding = check_worker({}, Seconds(1));
  EXPECT_EQ(finding.status, Status::missing);
  EXPECT_THAT(finding.advice, HasSubstr("./dev build"));
}

TEST(Doctor, ProgramsAreLookedForOnPath) {
  EXPECT_EQ(check_program("shell", "sh", "").status, Status::ok);
  const Finding finding = check_program("slurm", "no-such-program-anywhere", "install it");
  EXPECT_EQ(finding.status, Status::absent);
  EXPECT_EQ(finding.advice, "install it");
}

TEST(Doctor, AnUnreadableFolderIsNotADisk) { EXPECT_EQ(check_disk("/no/such/folder").status, Status::missing); }

}  // namespace
}  // namespace tessera::cli
