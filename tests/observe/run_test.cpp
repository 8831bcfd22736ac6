#include "observe/run.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.hpp"
#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::observe {
namespace {

StepMetrics metrics_of(std::int64_t step) {
  return {step, 5.0 / static_cast<double>(step + 1), 2048, 0.25, 8192.0, 0.4, 1.5, 3e-4, 0.123, 1 << 30};
}

void write_steps(RunWriter& writer, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step < last; ++step) writer.step(metrics_of(step));
}

std::string error_of(const std::filesystem::path& run, IfExists if_exists) {
  try {
    const RunLock lock = prepare_run(run, if_exists);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

TEST(RunWriter, WritesOneLineAStep) {
  const TemporaryFolder folder;
  {
    RunWriter writer(folder.path(), 0, 0);
    write_steps(writer, 0, 3);
    writer.evaluation({3, 2.5});
  }
  const std::string content = read_whole(folder.path() / "metrics.jsonl");
  EXPECT_EQ(std::count(content.begin(), content.end(), '\n'), 3);
  EXPECT_EQ(
      content.substr(0, content.find('\n')),
      R"({"step":0,"loss":5.0,"tokens":2048,"seconds":0.25,"tokens_per_s":8192.0,"mfu":0.4,"grad_norm":1.5,"lr":0.0003,"tflops":0.123,"memory":1073741824})");
  const auto read = read_metrics(folder.path() / "metrics.jsonl");
  ASSERT_EQ(read.size(), 3u);
  EXPECT_EQ(read[2].step, 2);
  EXPECT_EQ(read[2].loss, metrics_of(2).loss);
  EXPECT_EQ(read[2].memory, 1 << 30);
  const auto evaluations = read_evaluations(folder.path() / "evaluations.jsonl");
  ASSERT_EQ(evaluations.size(), 1u);
  EXPECT_EQ(evaluations[0].step, 3);
  EXPECT_EQ(evaluations[0].loss, 2.5);
}

TEST(RunWriter, AfterResumeEachStepStandsOnce) {
  const TemporaryFolder folder;
  {
    RunWriter writer(folder.path(), 0, 0);
    write_steps(writer, 0, 7);
    writer.evaluation({4, 3.0});
    writer.evaluation({7, 2.0});
  }
  // Killed in the middle of a line.
  std::string content = read_whole(folder.path() / "metrics.jsonl");
  write_whole(real_file_system(), folder.path() / "metrics.jsonl", content + R"({"step":7,"lo)");
  {
    RunWriter writer(folder.path(), 4, 5);
    write_steps(writer, 4, 6);
  }
  const auto read = read_metrics(folder.path() / "metrics.jsonl");
  ASSERT_EQ(read.size(), 6u);
  for (std::size_t i = 0; i < read.size(); ++i) EXPECT_EQ(read[i].step, static_cast<std::int64_t>(i));
  const auto evaluations = read_evaluations(folder.path() / "evaluations.jsonl");
  ASSERT_EQ(evaluations.size(), 1u);
  EXPECT_EQ(evaluations[0].step, 4);
}

// A complete run that is resumed is only evaluated again.
TEST(RunWriter, ARepeatedEvaluationStandsOnce) {
  const TemporaryFolder folder;
  for (int round = 0; round < 3; ++round) {
    RunWriter writer(folder.path(), round == 0 ? 0 : 4, round == 0 ? 0 : 4);
    if (round == 0) write_steps(writer, 0, 4);
    writer.evaluation({4, 3.0});
  }
  const std::string lines = read_whole(folder.path() / "evaluations.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 1);
  EXPECT_EQ(read_metrics(folder.path() / "metrics.jsonl").size(), 4u);
}

TEST(RunWriter, AFullDiskDelaysLinesAndLeavesNoHalfOnes) {
  const TemporaryFolder folder;
  const auto place = folder.path() / "small";
  std::filesystem::create_directories(place);
  if (::mount("tmpfs", place.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "SKIPPED: mounting a small tmpfs needs root";
  struct Unmount {
    std::filesystem::path path;
    ~Unmount() { ::umount2(path.c_str(), MNT_DETACH); }
  } unmount{place};

  RunWriter writer(place / "run", 0, 0);
  write_steps(writer, 0, 10);
  const auto filler = place / "filler";
  std::ofstream(filler) << std::string(std::size_t{64} << 10, 'x');
  write_steps(writer, 10, 1000);
  const auto metrics = place / "run/metrics.jsonl";
  EXPECT_LT(read_metrics(metrics).size(), 1000u);
  EXPECT_EQ(read_whole(metrics).back(), '\n');
  std::filesystem::remove(filler);
  ASSERT_EQ(::mount("tmpfs", place.c_str(), "tmpfs", MS_REMOUNT, "size=4m"), 0);
  write_steps(writer, 1000, 1001);
  EXPECT_EQ(read_metrics(metrics).size(), 1001u);
}

TEST(Metrics, ALastLineThatWasCutShortIsLeftOut) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  const std::string line = to_json(metrics_of(0)) + "\n";
  for (std::size_t cut = 0; cut < line.size(); ++cut) {
    write_whole(real_file_system(), path, line + line.substr(0, cut));
    EXPECT_EQ(read_metrics(path).size(), 1u) << cut;
  }
  EXPECT_TRUE(read_metrics(folder.path() / "none.jsonl").empty());
}

TEST(Metrics, AWrongLineInTheMiddleIsNamed) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "metrics.jsonl";
  write_whole(real_file_system(), path, to_json(metrics_of(0)) + "\nnonsense\n" + to_json(metrics_of(1)) + "\n");
  try {
    read_metrics(path);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    EXPECT_EQ(error.where().line, 2);
  }
}

TEST(Metrics, NumbersThatAreNotFiniteStayReadable) {
  const TemporaryFolder folder;
  StepMetrics bad = metrics_of(0);
  bad.loss = std::numeric_limits<double>::quiet_NaN();
  bad.grad_norm = std::numeric_limits<double>::infinity();
  write_whole(real_file_system(), folder.path() / "metrics.jsonl", to_json(bad) + "\n");
  const auto read = read_metrics(folder.path() / "metrics.jsonl");
  ASSERT_EQ(read.size(), 1u);
  EXPECT_TRUE(std::isnan(read[0].loss));
  EXPECT_EQ(json_object({{"a", "\"x\"\n"}, {"b", "\xff"}}), "{\"a\":\"\\\"x\\\"\\n\",\"b\":\"\xef\xbf\xbd\"}");
}

TEST(PrepareRun, TouchesNoRunUnlessAskedTo) {
  using testing::HasSubstr;
  const TemporaryFolder folder;
  const auto run = folder.path() / "first";
  EXPECT_THAT(error_of(run, IfExists::resume), HasSubstr("no run to resume"));
  EXPECT_EQ(error_of(run, IfExists::refuse), "");
  EXPECT_TRUE(std::filesystem::is_directory(run / "checkpoints"));
  // A start that failed before its first step may be tried again.
  write_whole(real_file_system(), run / "train.yaml", std::string("model: {}\n"));
  EXPECT_EQ(error_of(run, IfExists::refuse), "");
  write_whole(real_file_system(), run / "metrics.jsonl", to_json(metrics_of(0)) + "\n");
  const std::string message = error_of(run, IfExists::refuse);
  EXPECT_THAT(message, testing::AllOf(HasSubstr("a run of this name exists"), HasSubstr("--resume"), HasSubstr("--overwrite"),
                                      HasSubstr("name=first-2")));
  // Nor is a save that was interrupted a checkpoint.
  std::filesystem::create_directory(run / "checkpoints" / "step-000001.tmp");
  EXPECT_THAT(error_of(run, IfExists::resume), testing::AllOf(HasSubstr("no checkpoint"), HasSubstr("--overwrite")));
  std::filesystem::create_directory(run / "checkpoints" / "step-000001");
  EXPECT_EQ(error_of(run, IfExists::resume), "");
  EXPECT_TRUE(std::filesystem::exists(run / "metrics.jsonl"));
  EXPECT_EQ(error_of(run, IfExists::replace), "");
  EXPECT_FALSE(std::filesystem::exists(run / "metrics.jsonl"));
}

TEST(PrepareRun, ReplacesNothingThatIsNoRun) {
  const TemporaryFolder folder;
  write_whole(real_file_system(), folder.path() / "thesis.txt", std::string("years of work"));
  EXPECT_THAT(error_of(folder.path(), IfExists::replace), testing::HasSubstr("not a run's folder"));
  EXPECT_THAT(error_of(folder.path(), IfExists::refuse), testing::HasSubstr("exists"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "thesis.txt"));
}

}  // namespace
}  // namespace tessera::observe
