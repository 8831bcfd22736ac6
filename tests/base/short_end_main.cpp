// The main of test programs with libtorch in them. Every test is a process of its own, and to take libtorch's registries apart lasts a
// third as long as one that does nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>
#include <cstdio>

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  std::fflush(nullptr);
  ::_exit(failed);
}
