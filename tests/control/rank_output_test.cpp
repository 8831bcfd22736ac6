#include "control/rank_output.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::control {
namespace {

struct Shown {
  std::string output;
  std::string errors;
  std::string recorded;
  std::size_t room = 1 << 20;  // bytes that whoever listens still takes

  RankOutput::Options options(bool live = false, std::optional<std::filesystem::path> logs = {}) {
    return {.hosts = {"a", "b"},
            .logs = std::move(logs),
            .live = live,
            .write =
                [this](Stream stream, std::string_view bytes) {
                  const std::string_view taken = bytes.substr(0, room);
                  (stream == Stream::output ? output : errors) += taken;
                  room -= taken.size();
                  return taken.size();
                },
            .record = [this](const std::string& line) { recorded += line + "\n"; }};
  }
};

TEST(RankOutput, ShowsRank0AsItIsAndTheOthersByLinesBehindTheirNames) {
  Shown shown;
  {
    RankOutput output(shown.options());
    output.wrote(0, Stream::errors, "step 1\nste");
    output.wrote(1, Stream::errors, "half");
    output.wrote(0, Stream::errors, "p 2\n");
    output.wrote(1, Stream::errors, " a line\nand a last");
    output.wrote(0, Stream::output, "{\"step\": 1}\n");
    output.wrote(1, Stream::output, "printed\n");
    output.ended(1);
  }
  EXPECT_EQ(shown.errors, "step 1\nstep 2\n[rank 1 @ b] half a line\n[rank 1 @ b] printed\n[rank 1 @ b] and a last\n");
  EXPECT_EQ(shown.output, "{\"step\": 1}\n");
  // Rank 0 has its lines in the log by itself.
  EXPECT_EQ(shown.recorded, "[rank 1 @ b] half a line\n[rank 1 @ b] printed\n[rank 1 @ b] and a last\n");
}

TEST(RankOutput, OthersDoNotBreakTheLineThatRenewsItself) {
  Shown shown;
  RankOutput output(shown.options(true));
  output.wrote(0, Stream::errors, "\r\033[Kstep 1");
  output.wrote(1, Stream::errors, "warning: slow\n");
  output.wrote(0, Stream::errors, "\r\033[Kstep 2");
  output.wrote(0, Stream::errors, "\r\033[K");
  output.wrote(1, Stream::errors, "again\n");
  EXPECT_EQ(shown.errors,
            "\r\033[Kstep 1"
            "\r\033[K[rank 1 @ b] warning: slow\n"
            "\r\033[Kstep 2"
            "\r\033[K"
            "[rank 1 @ b] again\n");
}

TEST(RankOutput, KeepsLinesOfEachRankWithoutWhatRenewsThem) {
  const TemporaryFolder folder;
  const auto logs = folder.path() / "logs";
  for (int start = 0; start < 2; ++start) {
    Shown shown;
    RankOutput output(shown.options(true, logs));
    output.wrote(0, Stream::errors, "\r\033[Kstep 1 of 2\r\033[Kstep 2 of 2\r\033[K");
    output.wrote(0, Stream::errors, "\033[1;31mwarning:\033[0m hot\nlast words");
    output.ended(0);
    output.ended(1, "rank 1 on b was ended by signal 9");
  }
  const std::string once = "warning: hot\nlast words\n";
  EXPECT_EQ(read_whole(logs / "rank-000.txt"), once + once);
  EXPECT_THAT(read_whole(logs / "rank-001.txt"), ::testing::StartsWith("rank 1 on b was ended by signal 9\n"));
}

TEST(RankOutput, WaitsForNoTerminalAndLosesTheOldest) {
  Shown shown;
  shown.room = 4;
  RankOutput output(shown.options());
  const std::string line(100'000, 'x');
  for (int i = 0; i < 30; ++i) output.wrote(0, Stream::errors, line + "\n");
  output.wrote(0, Stream::errors, "newest\n");
  EXPECT_EQ(shown.errors, "xxxx");
  shown.room = std::size_t{1} << 30;
  output.flush();
  EXPECT_LT(shown.errors.size(), std::size_t{2} << 20);
  EXPECT_THAT(shown.errors, ::testing::EndsWith("x\nnewest\n"));
}

TEST(RankOutput, NamesLogsSoThatTheySortByRank) {
  EXPECT_EQ(rank_log_name(3), "rank-003.txt");
  EXPECT_EQ(rank_log_name(1024), "rank-1024.txt");
}

}  // namespace
}  // namespace tessera::control
