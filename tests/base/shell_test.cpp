#include "base/shell.hpp"

#include <gtest/gtest.h>

namespace tessera {
namespace {

TEST(ShellQuoted, AShellReadsTheWordAsItWas) {
  EXPECT_EQ(shell_quoted("runs/zz/train.yaml"), "runs/zz/train.yaml");
  EXPECT_EQ(shell_quoted("my runs/zz"), "'my runs/zz'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted("~/$HOME"), "'~/$HOME'");
  EXPECT_EQ(shell_quoted(""), "''");
}

}  // namespace
}  // namespace tessera
