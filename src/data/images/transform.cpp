#include "data/images/transform.hpp"

#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

using model::CropKind;
using model::ImageSpec;

// The shorter side becomes `side`, the longer one keeps the aspect ratio (torchvision's Resize).
Image with_shorter_side(const Image& image, int side) {
  const int shorter = std::min(image.width, image.height);
  const auto other = [&](int longer) { return static_cast<int>(static_cast<std::int64_t>(side) * longer / shorter); };
  return image.width <= image.height ? resized(image, side, other(image.height)) : resized(image, other(image.width), side);
}

// The square whose corner is at (left, top) of the image; outside of it, it is black.
Image cropped(const Image& image, int left, int top, int side) {
  Image out = blank(side, side, image.channels);
  const int begin = std::max(0, left), end = std::min(image.width, left + side);
  for (int y = std::max(0, top); y < std::min(image.height, top + side); ++y)
    std::copy(image.row(y) + begin * image.channels, image.row(y) + end * image.channels,
              out.row(y - top) + (begin - left) * image.channels);
  return out;
}

Image resized_for_crop(const Image& image, const ImageSpec& spec, const ImageShape& shape, int padding, const std::string& name) {
  constexpr int kLongest = 100;
  if (std::max(image.width, image.height) / std::min(image.width, image.height) > kLongest)
    throw Error(ErrorCode::invalid_config, text("the image is ", image.width, " x ", image.height, " pixels"), in_file(name),
                text("sides of which one is at most ", kLongest, " times the other"), "take it out of the source");
  Image out = with_shorter_side(image, spec.resize > 0 ? spec.resize : shape.side);
  const int shorter = std::min(out.width, out.height) + 2 * padding;
  if (shorter < shape.side)
    throw Error(ErrorCode::invalid_config,
                text("the image is resized to ", out.width, " x ", out.height, ", smaller than the crop of ", shape.side), in_file(name),
                text("data.images.resize of at least ", shape.side - 2 * padding), "set it to model.image, or leave it out");
  return out;
}

Image center_crop(const Image& image, const ImageSpec& spec, const ImageShape& shape, const std::string& name) {
  const Image whole = resized_for_crop(image, spec, shape, 0, name);
  // As torchvision rounds: halves to the even number.
  const auto offset = [&](int extent) { return static_cast<int>(std::nearbyint((extent - shape.side) / 2.0)); };
  return cropped(whole, offset(whole.width), offset(whole.height), shape.side);
}

Image random_crop(const Image& image, const ImageSpec& spec, const ImageShape& shape, Random& random, const std::string& name) {
  const Image whole = resized_for_crop(image, spec, shape, spec.padding, name);
  const auto offset = [&](int extent) {
    return static_cast<int>(random.below(static_cast<std::uint64_t>(extent + 2 * spec.padding - shape.side + 1))) - spec.padding;
  };
  const int left = offset(whole.width);
  return cropped(whole, left, offset(whole.height), shape.side);
}

Image random_resized_crop(const Image& image, const ImageSpec& spec, int side, Random& random) {
  constexpr int kTries = 10;
  constexpr double kLeastRatio = 3.0 / 4, kMostRatio = 4.0 / 3;
  const double area = static_cast<double>(image.width) * image.height;
  const auto between = [&](double least, double most) { return least + (most - least) * random.uniform(); };
  for (int tries = 0; tries < kTries; ++tries) {
    const double wanted = area * between(spec.scale_least, spec.scale_most);
    const double ratio = std::exp(between(std::log(kLeastRatio), std::log(kMostRatio)));
    const auto width = std::lround(std::sqrt(wanted * ratio)), height = std::lround(std::sqrt(wanted / ratio));
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    const auto left = random.below(static_cast<std::uint64_t>(image.width - width + 1));
    const auto top = random.below(static_cast<std::uint64_t>(image.height - height + 1));
    return resized(image, {static_cast<double>(left), static_cast<double>(top), static_cast<double>(width), static_cast<double>(height)},
                   side, side);
  }
  // The largest part at the centre whose ratio is allowed.
  const int width = std::min(image.width, static_cast<int>(std::lround(image.height * kMostRatio)));
  const int height = std::min(image.height, static_cast<int>(std::lround(image.width / kLeastRatio)));
  return resized(image,
                 {static_cast<double>((image.width - width) / 2), static_cast<double>((image.height - height) / 2),
                  static_cast<double>(width), static_cast<double>(height)},
                 side, side);
}

void flip(Image& image) {
  const int channels = image.channels;
  for (int y = 0; y < image.height; ++y)
    for (int left = 0, right = image.width - 1; left < right; ++left, --right)
      std::swap_ranges(image.row(y) + left * channels, image.row(y) + (left + 1) * channels, image.row(y) + right * channels);
}

void normalize(const Image& image, const ImageSpec& spec, std::span<float> out) {
  const auto value = [](const std::vector<double>& all, std::size_t channel, double none) {
    return all.empty() ? none : all[all.size() == 1 ? 0 : channel];
  };
  const auto channels = static_cast<std::size_t>(image.channels);
  const std::size_t plane = out.size() / channels;
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = value(spec.mean, c, 0), deviation = value(spec.std, c, 1);
    const auto scale = static_cast<float>(1 / (255 * deviation)), shift = static_cast<float>(-mean / deviation);
    for (std::size_t i = 0; i < plane; ++i) out[c * plane + i] = static_cast<float>(image.pixels[i * channels + c]) * scale + shift;
  }
}

// Marsaglia and Tsang 2000; for alpha below 1 with the power of a uniform number that lifts it there.
double draw_gamma(double alpha, Random& random) {
  if (alpha < 1) {
    const double lift = std::pow(1 - random.uniform(), 1 / alpha);
    return draw_gamma(alpha + 1, random) * lift;
  }
  constexpr double kTwoPi = 6.283185307179586;
  const double d = alpha - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform()));
    const double normal = radius * std::cos(kTwoPi * random.uniform());
    const double v = std::pow(1 + c * normal, 3);
    if (v > 0 && std::log(1 - random.uniform()) < 0.5 * normal * normal + d - d * v + d * std::log(v)) return d * v;
  }
}

}  // namespace

double draw_beta(double alpha, Random& random) {
  const double a = draw_gamma(alpha, random), b = draw_gamma(alpha, random);
  // Both vanish for a tiny alpha, whose distribution lies at 0 and 1.
  return a + b > 0 ? a / (a + b) : static_cast<double>(random.below(2));
}

void transform(Image image, const ImageSpec& spec, const ImageShape& shape, Random& random, const std::string& name, std::span<float> out) {
  image = with_channels(std::move(image), shape.channels);
  Image crop = spec.crop == CropKind::center   ? center_crop(image, spec, shape, name)
               : spec.crop == CropKind::random ? random_crop(image, spec, shape, random, name)
                                               : random_resized_crop(image, spec, shape.side, random);
  if (spec.flip && random.below(2) == 1) flip(crop);
  jitter(crop, spec.jitter, random);
  normalize(crop, spec, out);
}

void transform(Image image, const ImageSpec& spec, const ImageShape& shape, const std::string& name, std::span<float> out) {
  normalize(center_crop(with_channels(std::move(image), shape.channels), spec, shape, name), spec, out);
}

}  // namespace tessera::data
