// Colours changed as torchvision's ColorJitter changes those of 8-bit images.
#include <algorithm>
#include <array>
#include <cmath>

#include "data/images/transform.hpp"

namespace tessera::data {
namespace {

std::uint8_t clamped(double value) { return static_cast<std::uint8_t>(std::clamp(value, 0.0, 255.0)); }

// image = factor * image + (1 - factor) * other, where other(pixel) is what the colour fades to.
template <typename Other>
void blend(Image& image, double factor, const Other& other) {
  const auto channels = static_cast<std::size_t>(image.channels);
  for (std::size_t i = 0; i < image.pixels.size(); i += channels) {
    const double faded = (1 - factor) * other(image.pixels.data() + i);
    for (std::size_t c = 0; c < channels; ++c) image.pixels[i + c] = clamped(factor * image.pixels[i + c] + faded);
  }
}

double mean_of(const Image& grey) {
  double sum = 0;
  for (const std::uint8_t pixel : grey.pixels) sum += pixel;
  return std::floor(sum / static_cast<double>(grey.pixels.size()) + 0.5);
}

// `turn`: of a full circle.
void turn_hue(Image& image, double turn) {
  for (std::size_t i = 0; i < image.pixels.size(); i += 3) {
    std::uint8_t* p = image.pixels.data() + i;
    const int most = std::max({p[0], p[1], p[2]}), least = std::min({p[0], p[1], p[2]});
    const double range = most - least;
    if (range == 0) continue;
    const double sixths = most == p[0] ? (p[1] - p[2]) / range : most == p[1] ? 2 + (p[2] - p[0]) / range : 4 + (p[0] - p[1]) / range;
    double hue = sixths + 6 * turn;
    hue -= 6 * std::floor(hue / 6);
    // What each colour has, by its distance on the circle from where it is full.
    const auto part = [&](double full) {
      const double distance = std::abs(hue - full);
      return std::clamp(2 - std::min(distance, 6 - distance), 0.0, 1.0);
    };
    const double full[] = {0, 2, 4};
    for (std::size_t c = 0; c < 3; ++c) p[c] = clamped(least + range * part(full[c]) + 0.5);
  }
}

}  // namespace

void jitter(Image& image, const model::JitterSpec& spec, Random& random) {
  if (!spec.any()) return;
  const auto between = [&](double least, double most) { return least + (most - least) * random.uniform(); };
  const auto factor = [&](double value) { return between(std::max(0.0, 1 - value), 1 + value); };
  std::array order = {0, 1, 2, 3};
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (const int change : order) {
    if (change == 0 && spec.brightness > 0) blend(image, factor(spec.brightness), [](const std::uint8_t*) { return 0.0; });
    if (change == 1 && spec.contrast > 0)
      blend(image, factor(spec.contrast), [mean = mean_of(with_channels(image, 1))](const std::uint8_t*) { return mean; });
    // Grey images have no saturation and no hue.
    if (image.channels != 3) continue;
    if (change == 2 && spec.saturation > 0)
      blend(image, factor(spec.saturation), [](const std::uint8_t* p) { return 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2]; });
    if (change == 3 && spec.hue > 0) turn_hue(image, between(-spec.hue, spec.hue));
  }
}

}  // namespace tessera::data
