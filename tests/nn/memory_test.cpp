#include "nn/memory.hpp"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <fstream>
#include <vector>

namespace tessera::nn {
namespace {

constexpr std::int64_t kCount = 16 << 20;  // 64 MiB of f32

std::int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * 4096;
}

TEST(Releasable, ViewsSeeTheMemoryThatIsHeldAgain) {
  const at::Tensor whole = releasable(100, at::kFloat, at::kCPU);
  const at::Tensor view = whole.narrow(0, 40, 10).view({2, 5});
  EXPECT_FALSE(hold(whole)) << "has its memory";
  release(whole);
  EXPECT_EQ(whole.numel(), 100);
  EXPECT_TRUE(hold(whole));
  EXPECT_FALSE(hold(whole));
  whole.fill_(1);
  view.fill_(2);
  EXPECT_EQ(whole.sum().item<float>(), 90 + 20);
}

TEST(Releasable, KeepsOneTensorsWorthForTheNextAndGivesTheRestBack) {
  const at::Tensor first = releasable(kCount, at::kFloat, at::kCPU), second = releasable(kCount, at::kFloat, at::kCPU);
  first.fill_(1), second.fill_(1);
  const std::int64_t before = resident_bytes();
  release(first), release(second);
  const std::int64_t given_back = before - resident_bytes();
  EXPECT_GT(given_back, kCount * 4 / 2);
  EXPECT_LT(given_back, kCount * 4 * 3 / 2);
  // What is kept is there without a page fault, and holds what it held.
  hold(first);
  EXPECT_EQ(first.sum().item<float>(), static_cast<float>(kCount));
}

TEST(Releasable, IsRefusedOfAViewThatBeginsWithin) {
  const at::Tensor whole = releasable(100, at::kFloat, at::kCPU);
  EXPECT_ANY_THROW(release(whole.narrow(0, 40, 10)));
}

// Tensors of 1 MiB that are freed together lie in one extent; what follows is 1024 times smaller than it.
TEST(Heap, SmallTensorsLieInWhatLargerOnesHaveFreed) {
  std::vector<at::Tensor> freed(256);
  for (at::Tensor& tensor : freed) tensor = at::ones({1 << 18});
  freed.clear();
  const std::int64_t before = resident_bytes();
  std::vector<at::Tensor> small(256);
  for (at::Tensor& tensor : small) tensor = at::ones({1 << 16});
  EXPECT_LT(resident_bytes() - before, 16 << 20) << "of 64 MiB";
}

}  // namespace
}  // namespace tessera::nn
