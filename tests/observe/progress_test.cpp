#include "observe/progress.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cstdlib>
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
    Progress progress(1000, 0, screen.options(false));
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
  Progress progress(100000, 0, screen.options(false));
  for (int step = 0; step < 60; ++step) {
    screen.clock.sleep(Seconds(1));
    progress.step(metrics_of(step, 1));
  }
  EXPECT_EQ(screen.written.size(), 12u);
}

TEST(Progress, FastStepsDoNotFloodTheLog) {
  Screen screen;
  Progress progress(10, 0, screen.options(false));
  for (int step = 0; step < 10; ++step) {
    screen.clock.sleep(Seconds(0.01));
    progress.step(metrics_of(step, 0.01));
  }
  EXPECT_EQ(screen.written.size(), 2u);
}

TEST(Progress, OnATerminalRenewsOneLine) {
  Screen screen;
  {
    Progress progress(100, 10, screen.options(true, 60));
    for (int step = 10; step < 100; ++step) {
      screen.clock.sleep(Seconds(0.05));
      progress.step(metrics_of(step, 0.05));
      if (step == 50) progress.note("validation loss 3.0");
    }
    progress.finish();
  }
  const std::string all = screen.all();
  // Lines that stay: the note, the last state and the summary.
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 3);
  EXPECT_THAT(all, testing::HasSubstr("\r\033[Kvalidation loss 3.0\n"));
  EXPECT_THAT(screen.written.back(), testing::StartsWith("90 steps in "));
  EXPECT_LT(screen.written.size(), 60u);
  for (const auto& text : screen.written)
    if (text.starts_with("\r\033[Kstep")) {
      EXPECT_LE(text.size(), 4u + 59u);
    }
}

// What a terminal showed can be read later, without its control sequences.
TEST(Progress, RecordsPlainLinesOfWhatATerminalShowed) {
  Screen screen;
  std::vector<std::string> recorded;
  ProgressOptions options = screen.options(true, 60);
  options.record = [&](const std::string& line) { recorded.push_back(line); };
  Progress progress(40, 0, options);
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
  Progress progress(100, 0, screen.options(false));
  for (int step = 0; step < 20; ++step) {
    screen.clock.sleep(Seconds(1));
    progress.step(metrics_of(step, step == 10 ? 50 : 1));
  }
  EXPECT_THAT(screen.written.back(), testing::HasSubstr("left 1:20"));
}

TEST(Progress, HonoursNoColor) {
  ::unsetenv("NO_COLOR");
  EXPECT_TRUE(color_wanted(true));
  EXPECT_FALSE(color_wanted(false));
  ::setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(color_wanted(true));
  ::setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(color_wanted(true));
  ::unsetenv("NO_COLOR");
}

}  // namespace
}  // namespace tessera::observe
