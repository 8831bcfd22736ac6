#include "base/parallel.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace tessera {
namespace {

TEST(InParallel, CallsEachOnceOnOneOfItsThreads) {
  std::vector<std::atomic<int>> calls(100);
  std::atomic<bool> strange = false;
  in_parallel(3, calls.size(), [&](std::size_t thread, std::size_t i) {
    ++calls[i];
    if (thread >= 3) strange = true;
  });
  EXPECT_TRUE(std::ranges::all_of(calls, [](const auto& count) { return count == 1; }));
  EXPECT_FALSE(strange);
}

TEST(InParallel, ThrowsWhatACallThrewOnceAllThreadsHaveEnded) {
  std::atomic<int> calls = 0;
  const auto work = [&](std::size_t, std::size_t i) {
    ++calls;
    if (i == 5) throw std::runtime_error("five");
  };
  EXPECT_THROW(in_parallel(2, 20, work), std::runtime_error);
  EXPECT_EQ(calls, 20);  // the other thread goes on
}

TEST(InParallel, DoesNothingWithoutWork) {
  in_parallel(0, 0, [](std::size_t, std::size_t) { FAIL(); });
  in_parallel(2, 0, [](std::size_t, std::size_t) { FAIL(); });
}

}  // namespace
}  // namespace tessera
