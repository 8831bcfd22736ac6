// What a train.yaml says about images: how they become the samples of a model that reads images.
#pragma once

#include <vector>

namespace tessera::model {

enum class CropKind {
  center,
  random,          // a square of the model's size from the padded image
  random_resized,  // a part of random area and aspect ratio, resized to the model's size (Szegedy et al. 2015)
};

// Like torchvision's ColorJitter: a factor is uniform in [max(0, 1 - value), 1 + value]; the hue turns by at most `hue` of a full turn.
struct JitterSpec {
  double brightness = 0;
  double contrast = 0;
  double saturation = 0;
  double hue = 0;  // at most 0.5

  bool any() const { return brightness > 0 || contrast > 0 || saturation > 0 || hue > 0; }
};

// Validation images are resized, cropped at their centre and normalized, whatever else is said.
struct ImageSpec {
  int resize = 0;  // the shorter side before the crop, in pixels; 0: the model's image size
  CropKind crop = CropKind::center;
  int padding = 0;            // black pixels on each side before a random crop
  double scale_least = 0.08;  // random_resized: the part of the image's area
  double scale_most = 1;
  bool flip = false;  // left to right, every second time
  JitterSpec jitter;
  // (pixel - mean) / std of pixels from 0 to 1. Empty: 0 and 1. One value: of all channels. Otherwise one for each channel of the model.
  std::vector<double> mean;
  std::vector<double> std;
  double mixup = 0;  // alpha of Zhang et al. 2018; 0: samples are not mixed
};

}  // namespace tessera::model
