#include "nn/device.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace tessera::nn {
namespace {

TEST(Devices, ACpuIsOneDeviceWhateverItsIndex) {
  EXPECT_EQ(device_of("cpu", 3), at::Device(at::kCPU));
  EXPECT_EQ(peak_memory(at::kCPU).value, 0);
}

TEST(Devices, WhatIsNotThereIsSaidWithWhatIs) {
  const int count = device_count("nvidia");
  try {
    device_of("nvidia", count);
    FAIL() << "a device beyond the last";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::not_found);
    EXPECT_THAT(error.what(), testing::HasSubstr(text("there is no device ", count, " of nvidia here: libtorch ")));
    EXPECT_THAT(error.what(), testing::HasSubstr(text("finds ", count)));
  }
  if (count == 0) return;
  EXPECT_EQ(device_of("nvidia", count - 1).index(), count - 1);
}

}  // namespace
}  // namespace tessera::nn
