// tessera import: what is refused before a worker is started.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command_helper.hpp"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(ImportCommand, NamesARunInTheFolderOfRuns) {
  const TemporaryFolder folder;
  folder.write("model/config.json", "{}");
  for (const char* name : {"../x", "/tmp/x", "..", "a/b", ".hidden", "a b", ""}) {
    const CommandResult result = run_tessera({"import", "model", "--name", name}, {folder.path(), {}});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_THAT(result.err, AllOf(HasSubstr("'" + std::string(name) + "' cannot name a folder of runs/"), HasSubstr("a-z, A-Z, 0-9")));
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path().parent_path() / "x"));
  EXPECT_FALSE(std::filesystem::exists(folder / "runs"));
}

}  // namespace
}  // namespace tessera::cli
