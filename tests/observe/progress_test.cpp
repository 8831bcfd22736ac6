#include "observe/progress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <vector>

namespace tessera::observe {
namespace {

class ManualClock final : public Clock {
 public:
  Seconds now() const override { return now_; }
  void sleep(Seconds duration) override { now_ += duration; }

 private:
  Seconds now_{100};
};

StepMetrics metrics_of(std::int64_t step, double seconds) {
  return {step, 3.14159, 1000, seconds, 1000 / seconds, 0.412, 0.82, 3e-4, 0.35, 1288490189};
}

struct Screen {
  ManualClock clock;
  std::vector<std::string> written;
  ProgressOptions options(bool live, int width = 120) {
    return {live, false, [width] { return width; }, [this](const std::string& text) { written.push_back(text); }, &clock};
  }
  std::string all() const {
    std::string out;
    for (const auto& text : written) out += text;
    return out;
  }
};

TEST(ProgressLine, HasEverythingWhereThereIsRoom) {
  EXPECT_EQ(progress_line(metrics_of(122, 0.5), 200, Seconds(151), 0, false),
            "step 123/200   61 %  loss 3.1416  grad 0.82  lr 3.00e-04  mem 1.20 GiB  2.00 k tokens/s  0.35 TFLOP/s  MFU 41.2 %  left 2:31");
}

TEST(ProgressLine, FitsEveryWidthAndKeepsTheLossLongest) {
  for (int width = 1; width < 200; ++width) {
    const std::string line = progress_line(metrics_of(122, 0.5), 200, Seconds(151), width, false);
    EXPECT_LE(line.size(), static_cast<std::size_t>(width));
    if (width >= 30) {
      EXPECT_THAT(line, testing::AllOf(testing::StartsWith("step 123/200"), testing::HasSubstr("loss 3.1416"))) << width;
    }
  }
}

TEST(ProgressLine, ColourAddsNoColumns) {
  std::string coloured = progress_line(metrics_of(5, 0.5), 200, Seconds(97), 100, true);
  EXPECT_THAT(coloured, testing::HasSubstr("\033["));
  for (std::size_t at; (at = coloured.find('\033')) != std::string::npos;) coloured.erase(at, coloured.find('m', at) + 1 - at);
  EXPECT_EQ(coloured, progress_line(metrics_of(5, 0.5), 200, Seconds(97), 100, false));
}

TEST(ProgressLine, DurationsAreShort) {
  EXPECT_EQ(duration_text(Seconds(-1)), "0 s");
  EXPECT_EQ(duration_text(Seconds(59.4)), "59 s");
  EXPECT_EQ(duration_text(Seconds(59.6)), "1:00");
  EXPECT_EQ(duration_text(Seconds(7387)), "2:03:07");
  EXPECT_EQ(duration_text(Seconds(4 * 86400 + 2 * 3600 + 180)), "4 d 02:03");
}

TEST(Progress, WithoutATerminalPrintsAboutOneLineAPercent) {
  Screen screen;
  {
    Progress progress(1000, 0, 0, screen.options(false));
    for (int step = 0; step < 1000; ++step) {
      screen.clock.sleep(Seconds(0.2));
      progress.step(metrics_of(step, 0.2));
    }
    progress.finish();
  }
  EXPECT_GE(screen.written.size(), 95u);
  EXPECT_LE(screen.written.size(), 110u);
  EXPECT_EQ(screen.all().find('\033'), std::string::npos);
  EXPECT_EQ(screen.all().find('\r'), std::string::npos);
  EXPECT_THAT(screen.written.front(), testing::StartsWith("step    1/1000"));
  EXPECT_THAT(screen.written[screen.written.size() - 2], testing::StartsWith("step 1000/1000"));
  EXPECT_EQ(screen.written.back(), "1000 steps in 3:20, 5.00 k tokens/s while training, last loss 3.1416\n");
}

TEST(Progress, WithoutATerminalSlowStepsShowEveryFiveSeconds) {
  Screen screen;
  Progress progress(100000, 0, 0, screen.options(false));
  for (int step = 0; step < 60; ++step) {
    screen.clock.sleep(Seconds(1));
    progress.step(metrics_of(step, 1));
  }
  EXPECT_EQ(screen.written.size(), 12u);
}

TEST(Progress, FastStepsDoNotFloodTheLog) {
  Screen screen;
  Progress progress(10, 0, 0, screen.options(false));
  for (int step = 0; step < 10; ++step) {
    screen.clock.sleep(Seconds(0.01));
    progress.step(metrics_of(step, 0.01));
  }
  EXPECT_EQ(screen.written.size(), 2u);
}

// What a terminal shows in the end: a carriage return with "erase line" clears what stands after the last newline.
std::vector<std::string> lines_left(const Screen& screen) {
  const std::string all = screen.all();
  std::vector<std::string> lines = {""};
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all.compare(i, 4, "\r\033[K") == 0) {
      lines.back().clear();
      i += 3;
    } else if (all[i] == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += all[i];
    }
  }
  return lines;
}

TEST(Progress, OnATerminalLeavesATableAndRenewsOneLine) {
  Screen screen;
  std::string before_the_end;
  {
    Progress progress(100, 10, 0, screen.options(true, 80));
    for (int step = 10; step < 100; ++step) {
      screen.clock.sleep(Seconds(0.04));
      progress.step(metrics_of(step, 0.05));
      if (step == 19 || step == 49 || step == 99) progress.evaluation(step + 1, 3.0 - step / 100.0, "validation loss");
      if (step == 49) progress.note("checkpoint at step 50");
      if (step == 52) before_the_end = lines_left(screen).back();
    }
    progress.finish();
  }
  EXPECT_THAT(before_the_end, testing::StartsWith("step  53/100"));
  EXPECT_LE(before_the_end.size(), 79u);
  const auto lines = lines_left(screen);
  EXPECT_EQ(lines[0], "     step      loss  validation      grad         lr   tokens/s    elapsed");
  EXPECT_EQ(lines[1], "       11    3.1416                  0.82   3.00e-04     20.0 k        0 s");
  EXPECT_EQ(lines[2], "       15    3.1416                  0.82   3.00e-04     20.0 k        0 s");
  EXPECT_EQ(lines[3], "       20    3.1416      2.8100      0.82   3.00e-04     20.0 k        0 s")
      << "a validation of the step is in its row";
  EXPECT_THAT(lines[9], testing::StartsWith("       50    3.1416      2.5100"));
  EXPECT_EQ(lines[10], "checkpoint at step 50");
  EXPECT_THAT(lines[20], testing::StartsWith("      100    3.1416      2.0100"));
  EXPECT_EQ(lines[21], "validation loss") << "of the last one, at the end";
  EXPECT_THAT(lines[22], testing::StartsWith("90 steps in "));
  EXPECT_THAT(lines[23], testing::IsEmpty());
  EXPECT_EQ(lines.size(), 24u);
  EXPECT_LT(screen.written.size(), 150u) << "the line is not renewed for each step";
}

TEST(Progress, RowsOfAnIntervalOfOnesOwnFitANarrowTerminal) {
  Screen screen;
  {
    Progress progress(1000, 0, 400, screen.options(true, 30));
    for (int step = 0; step < 900; ++step) progress.step(metrics_of(step, 0.05));
    progress.evaluation(900, 2.5, "validation loss");
    progress.finish();
  }
  const auto lines = lines_left(screen);
  EXPECT_THAT(lines, testing::ElementsAre("     step      loss  validati", "        1    3.1416          ", "      400    3.1416          ",
                                          "      800    3.1416          ", "      900    3.1416      2.50", "validation loss",
                                          testing::StartsWith("900 steps in "), ""));
}

TEST(Progress, ARunThatEndsBeforeItsLastStepHasARowOfIt) {
  Screen screen;
  Progress progress(1000, 0, 0, screen.options(true, 80));
  for (int step = 0; step < 53; ++step) progress.step(metrics_of(step, 0.05));
  progress.finish();
  const auto lines = lines_left(screen);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_THAT(lines[2], testing::StartsWith("       50 "));
  EXPECT_THAT(lines[3], testing::StartsWith("       53 "));
}

TEST(Progress, WithoutATerminalPrintsTheStepsOfAnInterval) {
  Screen screen;
  Progress progress(20, 0, 6, screen.options(false));
  for (int step = 0; step < 20; ++step) progress.step(metrics_of(step, 0.05));
  progress.evaluation(20, 2.5, "validation loss 2.5");
  progress.finish();
  std::string steps;
  for (const auto& text : screen.written) steps += text.substr(0, text.starts_with("step") ? 10 : std::string::npos) + "|";
  EXPECT_EQ(steps, "step  1/20|step  6/20|step 12/20|step 18/20|step 20/20|validation loss 2.5\n|" + screen.written.back() + "|");
}

TEST(Progress, ATableHasAboutTwentyRows) {
  for (const auto& [steps, interval] : std::initializer_list<std::pair<std::int64_t, std::int64_t>>{
           {1, 1}, {20, 1}, {21, 2}, {100, 5}, {390, 20}, {1000, 50}, {1001, 100}, {100000, 5000}})
    EXPECT_EQ(row_interval(steps), interval) << steps;
}

// What a terminal showed can be read later, without its control sequences.
TEST(Progress, RecordsPlainLinesOfWhatATerminalShowed) {
  Screen screen;
  std::vector<std::string> recorded;
  ProgressOptions options = screen.options(true, 60);
  options.record = [&](log::Level, const std::string& line) { recorded.push_back(line); };
  Progress progress(40, 0, 0, options);
  for (int step = 0; step < 40; ++step) {
    screen.clock.sleep(Seconds(2));
    progress.step(metrics_of(step, 2));
    if (step == 20) progress.note("validation loss 3.0");
  }
  progress.finish();
  ASSERT_EQ(recorded.size(), 42u);
  EXPECT_THAT(recorded[0], testing::StartsWith("step  1/40"));
  EXPECT_EQ(recorded[21], "validation loss 3.0");
  EXPECT_THAT(recorded[40], testing::StartsWith("step 40/40"));
  EXPECT_THAT(recorded[41], testing::StartsWith("40 steps in 1:20"));
  for (const std::string& line : recorded) EXPECT_EQ(line.find_first_of("\r\n\033"), std::string::npos);
}

TEST(Progress, TheTimeLeftIgnoresOneSlowStep) {
  Screen screen;
  Progress progress(100, 0, 0, screen.options(false));
  for (int step = 0; step < 20; ++step) {
    screen.clock.sleep(Seconds(1));
    progress.step(metrics_of(step, step == 10 ? 50 : 1));
  }
  EXPECT_THAT(screen.written.back(), testing::HasSubstr("left 1:20"));
}

}  // namespace
}  // namespace tessera::observe
