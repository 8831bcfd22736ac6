// internal: from a decoded image to a sample.
#pragma once

#include <span>
#include <string>

#include "base/random.hpp"
#include "data/images/image.hpp"
#include "model/image_spec.hpp"

namespace tessera::data {

// What a model reads: square images.
struct ImageShape {
  int channels = 3;
  int side = 224;

  std::size_t size() const { return static_cast<std::size_t>(channels) * static_cast<std::size_t>(side) * static_cast<std::size_t>(side); }
};

// The image of a training sample, f32 [channels, side, side], normalized: what is random is drawn from `random`. In torchvision's order:
// resize and crop, flip, jitter, normalize. `name` stands for the image in errors. Throws invalid_config where it is smaller than the crop.
void transform(Image image, const model::ImageSpec& spec, const ImageShape& shape, Random& random, const std::string& name,
               std::span<float> out);
// That of a validation sample: resized, cropped at its centre, normalized.
void transform(Image image, const model::ImageSpec& spec, const ImageShape& shape, const std::string& name, std::span<float> out);

// From the Beta distribution with both parameters `alpha` > 0.
double draw_beta(double alpha, Random& random);

// The jitter alone.
void jitter(Image& image, const model::JitterSpec& spec, Random& random);

}  // namespace tessera::data
