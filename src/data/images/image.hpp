// internal: an image in memory, and what makes one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {

// 8 bits a channel, rows from the top, channels of a pixel side by side: 1 (grey) or 3 (red, green, blue).
struct Image {
  int width = 0;
  int height = 0;
  int channels = 0;
  std::vector<std::uint8_t> pixels;  // height * width * channels

  std::uint8_t* row(int y) { return pixels.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(width * channels); }
  const std::uint8_t* row(int y) const { return pixels.data() + static_cast<std::size_t>(y) * static_cast<std::size_t>(width * channels); }
};

Image blank(int width, int height, int channels);

// Reads a JPEG (grey, colour or CMYK) or a PNG (of any kind; transparency is dropped, palettes are looked up, 16 bits become 8) as its
// first bytes tell. `name` stands for it in errors. Throws corrupt for damaged and cut-off files, and for files that are neither.
Image decode_image(std::span<const std::byte> bytes, const std::string& name);
// Whether a file of this name holds what decode_image() reads.
bool is_image_name(std::string_view name);

// Grey becomes as many channels; colour becomes grey by ITU-R 601: 0.299 R + 0.587 G + 0.114 B.
Image with_channels(Image image, int channels);

// The part of an image from (left, top), which may lie between pixels and must lie within it, as an image of another size, by bilinear
// interpolation with antialiasing: the filter is as wide as the pixels of the result are. The same to the bit as Pillow's
// Image.resize(size, BILINEAR, box), which torchvision's Resize uses.
struct Box {
  double left = 0;
  double top = 0;
  double width = 0;
  double height = 0;
};
Image resized(const Image& image, const Box& box, int width, int height);
Image resized(const Image& image, int width, int height);

}  // namespace tessera::data
