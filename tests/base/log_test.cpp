#include "base/log.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(Log, TheFileHasAllThatWasShownAndWhatWasSaidBeforeItWasSet) {
  const TemporaryFolder folder;
  log::info("before the file");
  log::show("shown early");
  log::set_file(folder / "log.txt");
  log::show("shown late");
  log::record(log::Level::error, "shown elsewhere");
  {
    const log::Silence silence;
    log::warning("said by another process");
  }
  log::warning("said here");
  const std::string content = read_whole(folder / "log.txt");
  for (const char* line :
       {"info: before the file\n", "info: shown early\n", "info: shown late\n", "error: shown elsewhere\n", "warning: said here\n"})
    EXPECT_THAT(content, HasSubstr(line));
  EXPECT_THAT(content, testing::Not(HasSubstr("another process")));
  EXPECT_LT(content.find("before the file"), content.find("shown late"));
}

}  // namespace
}  // namespace tessera
