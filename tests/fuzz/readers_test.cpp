// Any content of a file that others write is either read or refused with a reason. A short run over every reader, the same in each
// build; `./dev bench fuzz` goes on for as long as one likes. `found/` has the inputs that once were neither.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file_system.hpp"
#include "base/folders.hpp"
#include "fuzz/fuzz.hpp"

namespace tessera::fuzz {
namespace {

class Reader : public ::testing::TestWithParam<std::string> {
 protected:
  const Target target = target_called(GetParam());
};

TEST_P(Reader, ReadsOrRefusesWithAReasonWhateverAFileHolds) {
  const Report report = fuzz(target, {.executions = target.short_run, .seed = 7});
  for (const auto& [what, input] : report.defects) ADD_FAILURE() << what << "\n--- input\n" << input.substr(0, 2000);
  // Neither is the loop idle, nor is everything refused at the door.
  EXPECT_GT(report.read, 20);
  EXPECT_GT(report.refused, target.short_run / 8);
}

INSTANTIATE_TEST_SUITE_P(All, Reader, ::testing::ValuesIn(target_names()), [](const auto& info) { return info.param; });

const std::filesystem::path kFound = std::filesystem::path(kSourceFolder) / "tests/fuzz/found";

std::vector<std::string> broken_readers() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFound)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class BrokenReader : public Reader {};

TEST_P(BrokenReader, ReadsOrRefusesWhatOnceBrokeIt) {
  int inputs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kFound / GetParam())) {
    ++inputs;
    const Judgement judgement = judge(target, read_whole(entry.path()));
    EXPECT_NE(judgement.verdict, Verdict::defect) << entry.path() << ": " << judgement.what;
  }
  EXPECT_GT(inputs, 0);
}

INSTANTIATE_TEST_SUITE_P(All, BrokenReader, ::testing::ValuesIn(broken_readers()), [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::fuzz
