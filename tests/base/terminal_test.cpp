#include "base/terminal.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>

namespace tessera {
namespace {

class Terminal : public testing::Test {
 protected:
  Terminal() {
    EXPECT_EQ(openpty(&outside_, &inside_, nullptr, nullptr, nullptr), 0);
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    unsetenv("COLUMNS");
  }
  ~Terminal() override {
    close(outside_);
    close(inside_);
    unsetenv("COLUMNS");
    unsetenv("NO_COLOR");
  }
  int outside_ = -1;
  int inside_ = -1;
};

TEST_F(Terminal, HasColourUnlessRefused) {
  EXPECT_TRUE(color_wanted(inside_));
  setenv("NO_COLOR", "", 1);
  EXPECT_TRUE(color_wanted(inside_));
  setenv("NO_COLOR", "1", 1);
  EXPECT_FALSE(color_wanted(inside_));
}

// What a rank on another host writes to its stderr, a pipe there, is shown on the terminal of whoever started it.
TEST_F(Terminal, IsTheOneOnWhichALauncherShowsThisProcess) {
  setenv(kShownElsewhere, "93 color", 1);
  EXPECT_TRUE(is_live_terminal(STDERR_FILENO));
  EXPECT_TRUE(color_wanted(STDERR_FILENO));
  EXPECT_EQ(columns_of(STDERR_FILENO), 93);
  EXPECT_FALSE(is_live_terminal(-1));
  setenv(kShownElsewhere, "93", 1);
  EXPECT_FALSE(color_wanted(STDERR_FILENO));
  unsetenv(kShownElsewhere);
}

TEST_F(Terminal, IsNotLiveWhereTheCursorCannotMove) {
  EXPECT_TRUE(is_live_terminal(inside_));
  setenv("TERM", "dumb", 1);
  EXPECT_FALSE(is_live_terminal(inside_));
  EXPECT_FALSE(color_wanted(inside_));
  unsetenv("TERM");
  EXPECT_FALSE(is_live_terminal(inside_));
}

TEST_F(Terminal, SaysItsColumnsBeforeTheEnvironmentDoes) {
  EXPECT_EQ(columns_of(inside_), 0);
  setenv("COLUMNS", "100", 1);
  EXPECT_EQ(columns_of(inside_), 100);
  const winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(ioctl(outside_, TIOCSWINSZ, &size), 0);
  EXPECT_EQ(columns_of(inside_), 80);
}

TEST(NoTerminal, IsNeitherLiveNorColoured) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(is_live_terminal(ends[1]));
  EXPECT_FALSE(color_wanted(ends[1]));
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace tessera
