#include "observe/tensorboard.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <bit>
#include <cstring>

#include "base/file_system.hpp"
#include "base/temporary_folder.hpp"

namespace tessera::observe {
namespace {

template <typename Value>
Value number_at(const std::string& bytes, std::size_t offset) {
  Value value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

bool is_masked_crc(std::uint32_t stored, std::string_view data) {
  const std::uint32_t rotated = stored - 0xa282ead8u;
  return (rotated >> 17 | rotated << 15) == crc32c(data);
}

TEST(TensorBoard, ChecksumIsThatOfRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(TensorBoard, FramesItsRecords) {
  const TemporaryFolder folder;
  {
    TensorBoardWriter writer(folder.path(), 5);
    writer.scalars(5, {{"train/loss", 1.5}, {"lr", 0.25}});
  }
  const auto path = std::filesystem::directory_iterator(folder.path())->path();
  EXPECT_THAT(path.filename().string(), testing::HasSubstr("tfevents"));
  const std::string content = read_whole(path);
  std::vector<std::string> records;
  for (std::size_t at = 0; at < content.size();) {
    const auto length = number_at<std::uint64_t>(content, at);
    EXPECT_TRUE(is_masked_crc(number_at<std::uint32_t>(content, at + 8), content.substr(at, 8)));
    records.push_back(content.substr(at + 12, length));
    EXPECT_TRUE(is_masked_crc(number_at<std::uint32_t>(content, at + 12 + length), records.back()));
    at += 16 + length;
  }
  ASSERT_EQ(records.size(), 3u);
  // Each event begins with wall_time (tag 1, double) and step (tag 2, varint).
  const auto body = [&](std::size_t i) {
    EXPECT_EQ(records[i][0], '\x09');
    EXPECT_EQ(records[i][9], '\x10');
    return records[i].substr(10);
  };
  EXPECT_EQ(body(0), std::string("\0\x1a\x0d"
                                 "brain.Event:2",
                                 16));
  EXPECT_EQ(body(1), std::string("\x05\x3a\x02\x08\x01", 5));
  const std::string loss = std::string("\x0a\x11\x0a\x0a", 4) + "train/loss" + std::string("\x15\0\0\xc0\x3f", 5);
  const std::string lr = std::string("\x0a\x09\x0a\x02", 4) + "lr" + std::string("\x15\0\0\x80\x3e", 5);
  EXPECT_EQ(body(2), std::string("\x05\x2a", 2) + static_cast<char>(loss.size() + lr.size()) + loss + lr);
}

}  // namespace
}  // namespace tessera::observe
