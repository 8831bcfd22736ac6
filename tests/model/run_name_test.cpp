#include "model/run_name.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "base/expect_error.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::model {
namespace {

using tessera::testing::error_of;
using ::testing::HasSubstr;

TEST(RunName, IsANameInRunsOrAFolderWithACheckpointBehindIt) {
  const TemporaryFolder folder;
  const auto runs = folder / "runs";
  folder.write("runs/first/train.yaml", "name: first\n");
  folder.write("elsewhere/a@7/train.yaml", "name: a\n");
  EXPECT_EQ(find_run("first", runs).folder, runs / "first");
  EXPECT_EQ(find_run("first", runs).step, std::nullopt);
  EXPECT_EQ(find_run("first@200", runs).folder, runs / "first");
  EXPECT_EQ(find_run("first@200", runs).step, 200);
  const std::string path = (folder / "elsewhere/a@7").string();
  EXPECT_EQ(find_run(path, runs).folder, path);
  EXPECT_EQ(find_run(path, runs).step, std::nullopt);
  EXPECT_EQ(find_run(path + "@0", runs).step, 0);
}

TEST(RunName, AnUnknownOneIsAnsweredWithTheNearest) {
  const TemporaryFolder folder;
  const auto runs = folder / "runs";
  EXPECT_THAT(error_of([&] { find_run("first", runs); }).what(), HasSubstr("there are none yet"));
  folder.write("runs/first/train.yaml", "name: first\n");
  folder.write("runs/notes/readme.txt", "no run");
  const Error unknown = error_of([&] { find_run("frist@7", runs); });
  EXPECT_EQ(unknown.code(), ErrorCode::not_found);
  EXPECT_THAT(unknown.what(), HasSubstr("there is no run 'frist'; expected one of: first\n  did you mean 'first'?"));
  const Error step = error_of([&] { find_run("first@last", runs); });
  EXPECT_EQ(step.code(), ErrorCode::invalid_config);
  EXPECT_THAT(step.what(), HasSubstr("'last' is no step of a run; expected RUN or RUN@STEP"));
}

}  // namespace
}  // namespace tessera::model
