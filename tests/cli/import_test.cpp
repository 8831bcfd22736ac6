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
  const std::string elsewhere = (folder / "elsewhere").string();
  for (const std::string& name : {std::string("../elsewhere"), elsewhere, std::string(".."), std::string("a/b"), std::string(".hidden"),
                                  std::string("a b"), std::string()}) {
    const CommandResult result = run_tessera({"import", "model", "--name", name}, {folder.path(), {}});
    EXPECT_EQ(result.exit_code, 2) << name;
    EXPECT_THAT(result.err, AllOf(HasSubstr("'" + name + "' cannot name a folder of runs/"), HasSubstr("a-z, A-Z, 0-9")));
  }
  EXPECT_FALSE(std::filesystem::exists(elsewhere));
  EXPECT_FALSE(std::filesystem::exists(folder / "runs"));
}

}  // namespace
}  // namespace tessera::cli
