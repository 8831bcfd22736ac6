#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include "base/error.hpp"
#include "data/image_files.hpp"

namespace tessera::data {
namespace {

using testing::HasSubstr;

Image decoded(const std::string& bytes) { return decode_image(std::as_bytes(std::span(bytes)), "pictures/a.jpg"); }

std::string refusal_of(const std::string& bytes) {
  try {
    decoded(bytes);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt);
    return error.what();
  }
  return "nothing was thrown";
}

TEST(DecodeImage, ReadsPngsExactly) {
  for (const int channels : {1, 3}) {
    const Image image = patterned(17, 9, channels);
    const Image back = decoded(png_of(image));
    EXPECT_EQ(back.width, 17);
    EXPECT_EQ(back.height, 9);
    EXPECT_EQ(back.channels, channels);
    EXPECT_EQ(back.pixels, image.pixels);
  }
}

TEST(DecodeImage, DropsTransparency) {
  const Image clear = plain(4, 4, {10, 200, 30, 0});
  EXPECT_EQ(decoded(png_of(clear, PNG_FORMAT_RGBA)).pixels, plain(4, 4, {10, 200, 30}).pixels);
}

TEST(DecodeImage, ReadsJpegsOfGreyColoursAndInks) {
  const Image grey = decoded(jpeg_of(plain(16, 8, {90})));
  EXPECT_EQ(grey.channels, 1);
  EXPECT_NEAR(grey.pixels[5], 90, 1);
  const Image colour = decoded(jpeg_of(plain(16, 8, {200, 100, 50})));
  EXPECT_EQ(colour.width, 16);
  EXPECT_EQ(colour.height, 8);
  ASSERT_EQ(colour.channels, 3);
  for (std::size_t c = 0; c < 3; ++c) EXPECT_NEAR(colour.pixels[c], plain(1, 1, {200, 100, 50}).pixels[c], 2);
  const Image inks = decoded(jpeg_of(plain(16, 8, {200, 100, 50, 255})));
  ASSERT_EQ(inks.channels, 3);
  for (std::size_t c = 0; c < 3; ++c) EXPECT_NEAR(inks.pixels[c], plain(1, 1, {200, 100, 50}).pixels[c], 2);
}

TEST(DecodeImage, MakesGreyAndColourOfEachOther) {
  EXPECT_EQ(with_channels(plain(2, 2, {77}), 3).pixels, plain(2, 2, {77, 77, 77}).pixels);
  EXPECT_EQ(with_channels(plain(2, 2, {255, 0, 0}), 1).pixels, plain(2, 2, {76}).pixels);
  EXPECT_EQ(with_channels(plain(2, 2, {255, 255, 255}), 1).pixels, plain(2, 2, {255}).pixels);
}

TEST(DecodeImage, RefusesWhatIsCutOffOrNoImageAndNamesIt) {
  const std::string jpeg = jpeg_of(patterned(64, 64, 3)), png = png_of(patterned(64, 64, 3));
  for (const std::string& whole : {jpeg, png})
    for (const std::size_t size : {whole.size() / 2, whole.size() - 20, std::size_t{12}})
      EXPECT_THAT(refusal_of(whole.substr(0, size)), HasSubstr("pictures/a.jpg: the image cannot be read")) << size;
  EXPECT_THAT(refusal_of(""), HasSubstr("it is empty"));
  EXPECT_THAT(refusal_of("GIF89a"), HasSubstr("neither those of a JPEG nor of a PNG"));
}

TEST(DecodeImage, RefusesSizesThatNoImageHas) {
  std::string png = png_of(patterned(8, 8, 1));
  // 900,000 pixels a side, with the checksum of that header.
  const std::string header = std::string("IHDR") + big_endian(900000) + big_endian(900000) + png.substr(24, 5);
  png.replace(12, 21, header + big_endian(static_cast<std::uint32_t>(crc32(0, reinterpret_cast<const Bytef*>(header.data()), 17))));
  EXPECT_THAT(refusal_of(png), HasSubstr("900000 x 900000 pixels"));
}

}  // namespace
}  // namespace tessera::data
