#include "data/images/transform.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "base/folders.hpp"
#include "data/image_files.hpp"

namespace tessera::data {
namespace {

using testing::HasSubstr;

TEST(Resize, IsPillowsToTheBit) {
  std::ifstream cases(std::string(kSourceFolder) + "/tests/data/resize_cases.txt");
  int count = 0;
  for (std::string line; std::getline(cases, line); ++count) {
    std::istringstream in(line);
    int width = 0, height = 0, channels = 0, new_width = 0, new_height = 0;
    Box box;
    in >> width >> height >> channels >> box.left >> box.top >> box.width >> box.height >> new_width >> new_height;
    std::vector<std::uint8_t> expected;
    for (int value = 0; in >> value;) expected.push_back(static_cast<std::uint8_t>(value));
    ASSERT_EQ(resized(patterned(width, height, channels), box, new_width, new_height).pixels, expected) << line.substr(0, 40);
  }
  EXPECT_EQ(count, 5);
}

std::vector<float> sample(const Image& image, const model::ImageSpec& spec, const ImageShape& shape, std::uint64_t seed) {
  std::vector<float> out(shape.size());
  Random random(seed);
  transform(image, spec, shape, random, "a.png", out);
  return out;
}

std::vector<float> validation_sample(const Image& image, const model::ImageSpec& spec, const ImageShape& shape) {
  std::vector<float> out(shape.size());
  transform(image, spec, shape, "a.png", out);
  return out;
}

// As planes of numbers from 0 to 1.
std::vector<float> planes(const Image& image) {
  std::vector<float> out;
  for (int c = 0; c < image.channels; ++c)
    for (std::size_t i = static_cast<std::size_t>(c); i < image.pixels.size(); i += static_cast<std::size_t>(image.channels))
      out.push_back(static_cast<float>(image.pixels[i]) / 255);
  return out;
}

void expect_near(const std::vector<float>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], expected[i], 1e-6) << i;
}

TEST(Transform, NormalizesEachChannel) {
  model::ImageSpec spec;
  spec.mean = {0.5, 0.25, 0};
  spec.std = {0.5, 1, 2};
  const auto out = validation_sample(plain(4, 4, {255, 51, 102}), spec, {3, 4});
  EXPECT_NEAR(out[0], 1, 1e-6);
  EXPECT_NEAR(out[16], -0.05, 1e-6);
  EXPECT_NEAR(out[32], 0.2, 1e-6);
}

TEST(Transform, ResizesTheShorterSideAndCropsTheCentre) {
  const Image image = patterned(40, 20, 3);
  model::ImageSpec spec;
  spec.resize = 12;
  const Image small = resized(image, 24, 12);
  Image expected = blank(8, 8, 3);
  for (int y = 0; y < 8; ++y) std::copy_n(small.row(y + 2) + 8 * 3, 8 * 3, expected.row(y));
  expect_near(validation_sample(image, spec, {3, 8}), planes(expected));
  // What is random is left to training.
  spec.crop = model::CropKind::random_resized;
  spec.flip = true;
  spec.jitter.brightness = 0.5;
  expect_near(validation_sample(image, spec, {3, 8}), planes(expected));
}

TEST(Transform, FlipsEverySecondImage) {
  const Image image = patterned(6, 6, 1);
  Image mirrored = image;
  for (int y = 0; y < 6; ++y) std::reverse(mirrored.row(y), mirrored.row(y) + 6);
  model::ImageSpec spec;
  spec.flip = true;
  int flipped = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto out = sample(image, spec, {1, 6}, seed);
    flipped += out[0] == planes(mirrored)[0] ? 1 : 0;
    expect_near(out, planes(out[0] == planes(mirrored)[0] ? mirrored : image));
  }
  EXPECT_NEAR(flipped, 100, 30);
}

TEST(Transform, CropsAnywhereInThePaddedImage) {
  // Padding of 2: of a white image 0 to 2 rows and columns at either end are black.
  model::ImageSpec spec;
  spec.crop = model::CropKind::random;
  spec.padding = 2;
  std::vector<int> black_rows(3);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto out = sample(plain(8, 8, {255}), spec, {1, 8}, seed);
    const auto whites = std::count(out.begin(), out.end(), 1.0f);
    EXPECT_EQ(whites + std::count(out.begin(), out.end(), 0.0f), 64);
    int rows = 0;
    for (int y = 0; y < 8; ++y) rows += std::count(out.begin() + 8 * y, out.begin() + 8 * (y + 1), 0.0f) == 8 ? 1 : 0;
    ASSERT_LE(rows, 2);
    ++black_rows[static_cast<std::size_t>(rows)];
  }
  // Offsets -2 .. 2: none in one of five, one or two in two of five each.
  EXPECT_NEAR(black_rows[0], 40, 25);
  EXPECT_NEAR(black_rows[1], 80, 35);
  EXPECT_NEAR(black_rows[2], 80, 35);
}

TEST(Transform, CropsRandomPartsOfTheAreaThatIsAskedFor) {
  // Columns rise from 0 to 255: the first and last column of the crop tell its width.
  Image image = blank(256, 256, 1);
  for (int y = 0; y < 256; ++y)
    for (int x = 0; x < 256; ++x) image.row(y)[x] = static_cast<std::uint8_t>(x);
  model::ImageSpec spec;
  spec.crop = model::CropKind::random_resized;
  spec.scale_least = spec.scale_most = 0.25;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto out = sample(image, spec, {1, 32}, seed);
    const double width = (out[31] - out[0]) * 255 * 32 / 31;
    // Half the side, by a ratio of 3/4 to 4/3.
    EXPECT_GT(width, 128 * std::sqrt(0.75) - 6);
    EXPECT_LT(width, 128 / std::sqrt(0.75) + 6);
  }
}

TEST(Transform, DrawsFromTheGeneratorAlone) {
  model::ImageSpec spec;
  spec.crop = model::CropKind::random_resized;
  spec.flip = true;
  spec.jitter = {0.4, 0.4, 0.4, 0.1};
  const Image image = patterned(50, 40, 3);
  EXPECT_EQ(sample(image, spec, {3, 16}, 5), sample(image, spec, {3, 16}, 5));
  EXPECT_NE(sample(image, spec, {3, 16}, 5), sample(image, spec, {3, 16}, 6));
}

TEST(Transform, RefusesAnImageThatIsSmallerThanTheCrop) {
  model::ImageSpec spec;
  spec.resize = 16;
  try {
    validation_sample(patterned(20, 40, 1), spec, {1, 32});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_config);
    EXPECT_THAT(error.what(), HasSubstr("the image is resized to 16 x 32, smaller than the crop of 32"));
    EXPECT_THAT(error.what(), HasSubstr("a.png"));
    EXPECT_THAT(error.what(), HasSubstr("data.images.resize of at least 32"));
  }
}

Image jittered(Image image, const model::JitterSpec& spec, std::uint64_t seed) {
  Random random(seed);
  jitter(image, spec, random);
  return image;
}

TEST(Jitter, ScalesBrightnessUpToItsFactor) {
  int least = 255, most = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const int value = jittered(plain(2, 2, {100}), {.brightness = 0.2}, seed).pixels[0];
    least = std::min(least, value);
    most = std::max(most, value);
  }
  EXPECT_GE(least, 79);
  EXPECT_LE(least, 82);
  EXPECT_GE(most, 117);
  EXPECT_LE(most, 120);
}

TEST(Jitter, KeepsTheMeanUnderContrastAndTheGreyUnderSaturation) {
  Image image = plain(4, 4, {60});
  std::fill_n(image.pixels.begin(), 8, 140);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Image out = jittered(image, {.contrast = 0.5}, seed);
    EXPECT_NEAR((out.pixels[0] + out.pixels[15]) / 2.0, 100, 1);
    const Image colour = jittered(plain(1, 1, {200, 100, 50}), {.saturation = 0.5}, seed);
    EXPECT_NEAR(0.299 * colour.pixels[0] + 0.587 * colour.pixels[1] + 0.114 * colour.pixels[2], 124.2, 1.1);
  }
}

TEST(Jitter, TurnsTheHueAndNothingElse) {
  bool changed = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const Image out = jittered(plain(1, 1, {200, 100, 50}), {.hue = 0.5}, seed);
    EXPECT_NEAR(*std::max_element(out.pixels.begin(), out.pixels.end()), 200, 1);
    EXPECT_NEAR(*std::min_element(out.pixels.begin(), out.pixels.end()), 50, 1);
    changed = changed || out.pixels[0] < 190;
    EXPECT_EQ(jittered(plain(1, 1, {70, 70, 70}), {.hue = 0.5}, seed).pixels, (std::vector<std::uint8_t>{70, 70, 70}));
  }
  EXPECT_TRUE(changed);
}

TEST(Mixup, DrawsFromTheBetaDistribution) {
  // Mean 1/2; variance 1 / (4 (2 alpha + 1)).
  for (const double alpha : {0.2, 1.0, 4.0}) {
    Random random(7);
    double sum = 0, squares = 0;
    constexpr int kDraws = 20000;
    for (int i = 0; i < kDraws; ++i) {
      const double value = draw_beta(alpha, random);
      ASSERT_GE(value, 0);
      ASSERT_LE(value, 1);
      sum += value;
      squares += value * value;
    }
    const double mean = sum / kDraws;
    EXPECT_NEAR(mean, 0.5, 0.02) << alpha;
    EXPECT_NEAR(squares / kDraws - mean * mean, 1 / (4 * (2 * alpha + 1)), 0.01) << alpha;
  }
}

}  // namespace
}  // namespace tessera::data
