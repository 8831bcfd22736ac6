// Pillow's resampling (Resample.c): two passes with weights in fixed point, rounded to 8 bits after each.
#include <algorithm>
#include <cmath>

#include "base/error.hpp"
#include "data/images/image.hpp"

namespace tessera::data {
namespace {

constexpr int kFractionBits = 32 - 8 - 2;

// What one pixel of the result is made of.
struct Taps {
  int first = 0;  // pixel
  int count = 0;
};

struct Filter {
  std::vector<Taps> taps;
  std::vector<std::int32_t> weights;  // `stride` of each pixel of the result
  int stride = 0;

  const std::int32_t* of(int pixel) const { return weights.data() + static_cast<std::ptrdiff_t>(pixel) * stride; }
};

Filter filter_of(int in, double begin, double extent, int out) {
  const double scale = extent / out;
  const double widening = std::max(1.0, scale);
  Filter filter;
  filter.stride = static_cast<int>(std::ceil(widening)) * 2 + 1;
  filter.weights.resize(static_cast<std::size_t>(out) * static_cast<std::size_t>(filter.stride));
  std::vector<double> raw(static_cast<std::size_t>(filter.stride));
  for (int x = 0; x < out; ++x) {
    const double center = begin + (x + 0.5) * scale;
    const int first = std::max(0, static_cast<int>(center - widening + 0.5));
    const int count = std::min(in, static_cast<int>(center + widening + 0.5)) - first;
    double sum = 0;
    for (int i = 0; i < count; ++i) {
      raw[static_cast<std::size_t>(i)] = std::max(0.0, 1 - std::abs((i + first - center + 0.5) / widening));
      sum += raw[static_cast<std::size_t>(i)];
    }
    for (int i = 0; i < count; ++i)
      filter.weights[static_cast<std::size_t>(x * filter.stride + i)] =
          static_cast<std::int32_t>(0.5 + raw[static_cast<std::size_t>(i)] / sum * (1 << kFractionBits));
    filter.taps.push_back({first, count});
  }
  return filter;
}

constexpr std::int32_t kHalf = 1 << (kFractionBits - 1);
std::uint8_t rounded(std::int32_t sum) { return static_cast<std::uint8_t>(std::clamp(sum >> kFractionBits, 0, 255)); }

// Rows [first, first + rows) of the image, each resized.
template <int channels>
Image across(const Image& image, const Filter& filter, int first, int rows) {
  Image out = blank(static_cast<int>(filter.taps.size()), rows, channels);
  for (int y = 0; y < rows; ++y) {
    const std::uint8_t* in = image.row(first + y);
    std::uint8_t* to = out.row(y);
    for (int x = 0; x < out.width; ++x) {
      const Taps taps = filter.taps[static_cast<std::size_t>(x)];
      const std::int32_t* weights = filter.of(x);
      const std::uint8_t* from = in + taps.first * channels;
      std::int32_t sums[channels];
      std::fill_n(sums, channels, kHalf);
      for (int i = 0; i < taps.count; ++i)
        for (int c = 0; c < channels; ++c) sums[c] += from[i * channels + c] * weights[i];
      for (int c = 0; c < channels; ++c) to[x * channels + c] = rounded(sums[c]);
    }
  }
  return out;
}

Image down(const Image& image, const Filter& filter, int first) {
  const int row_size = image.width * image.channels;
  Image out = blank(image.width, static_cast<int>(filter.taps.size()), image.channels);
  std::vector<std::int32_t> sums(static_cast<std::size_t>(row_size));
  for (int y = 0; y < out.height; ++y) {
    const Taps taps = filter.taps[static_cast<std::size_t>(y)];
    const std::int32_t* weights = filter.of(y);
    std::fill(sums.begin(), sums.end(), kHalf);
    for (int i = 0; i < taps.count; ++i) {
      const std::uint8_t* from = image.row(taps.first - first + i);
      const std::int32_t weight = weights[i];
      for (int x = 0; x < row_size; ++x) sums[static_cast<std::size_t>(x)] += from[x] * weight;
    }
    std::transform(sums.begin(), sums.end(), out.row(y), rounded);
  }
  return out;
}

}  // namespace

Image blank(int width, int height, int channels) {
  return {
      width, height, channels,
      std::vector<std::uint8_t>(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * static_cast<std::size_t>(channels))};
}

Image resized(const Image& image, const Box& box, int width, int height) {
  ensure(box.left >= 0 && box.top >= 0 && box.width > 0 && box.height > 0 && box.left + box.width <= image.width &&
             box.top + box.height <= image.height && width > 0 && height > 0,
         "a box lies within its image");
  const bool whole = box.left == 0 && box.top == 0 && box.width == image.width && box.height == image.height;
  if (whole && width == image.width && height == image.height) return image;
  const Filter columns = filter_of(image.width, box.left, box.width, width);
  const Filter rows = filter_of(image.height, box.top, box.height, height);
  const int first = rows.taps.front().first;
  const int used = rows.taps.back().first + rows.taps.back().count - first;
  return down(image.channels == 1 ? across<1>(image, columns, first, used) : across<3>(image, columns, first, used), rows, first);
}

Image resized(const Image& image, int width, int height) {
  return resized(image, {0, 0, static_cast<double>(image.width), static_cast<double>(image.height)}, width, height);
}

}  // namespace tessera::data
