#include "base/temporary_folder.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cstdlib>
#include <string>

namespace tessera {
namespace {

TEST(TemporaryFolder, WhatAKilledProcessLeftIsRemoved) {
  const TemporaryFolder place;
  const auto left = [&] {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(place.path())) ++count;
    return count;
  };
  const char* const before = std::getenv("TMPDIR");
  const std::string restored = before != nullptr ? before : "/tmp";
  ASSERT_EQ(::setenv("TMPDIR", place.path().c_str(), 1), 0);
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const TemporaryFolder folder;
    folder.write("a/b", "content");
    [[maybe_unused]] const ssize_t told = ::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  {
    const TemporaryFolder beside;
    TemporaryFolder::remove_abandoned();
    EXPECT_EQ(left(), 2) << "one that is in use is left alone";
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_EQ(left(), 1);
  {
    const TemporaryFolder next;
    TemporaryFolder::remove_abandoned();
    EXPECT_EQ(left(), 1);
    EXPECT_TRUE(std::filesystem::exists(next.path()));
  }
  EXPECT_EQ(left(), 0);
  ::setenv("TMPDIR", restored.c_str(), 1);
}

}  // namespace
}  // namespace tessera
