// Images, and files of them, as others write them.
#pragma once

#include <png.h>
#include <turbojpeg.h>
#include <cstdio>
#include <string>
#include <vector>

#include "data/images/image.hpp"

namespace tessera::data {

// No two of its neighbouring pixels are alike.
inline Image patterned(int width, int height, int channels) {
  Image image = blank(width, height, channels);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) image.row(y)[x * channels + c] = static_cast<std::uint8_t>(x * 37 + y * 91 + c * 53 + x * y * 7);
  return image;
}

// Of one colour: what a JPEG keeps but for a rounding.
inline Image plain(int width, int height, std::vector<std::uint8_t> colour) {
  Image image = blank(width, height, static_cast<int>(colour.size()));
  for (std::size_t i = 0; i < image.pixels.size(); ++i) image.pixels[i] = colour[i % colour.size()];
  return image;
}

inline std::string png_of(const Image& image, unsigned format) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = format;
  png_alloc_size_t size = 0;
  png_image_write_to_memory(&png, nullptr, &size, 0, image.pixels.data(), 0, nullptr);
  std::string out(size, '\0');
  png_image_write_to_memory(&png, out.data(), &size, 0, image.pixels.data(), 0, nullptr);
  out.resize(size);
  return out;
}
inline std::string png_of(const Image& image) { return png_of(image, image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB); }

inline std::string jpeg_of(const Image& image) {
  const tjhandle handle = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  const bool grey = image.channels == 1, inks = image.channels == 4;
  tjCompress2(handle, image.pixels.data(), image.width, 0, image.height,
              grey   ? TJPF_GRAY
              : inks ? TJPF_CMYK
                     : TJPF_RGB,
              &bytes, &size, grey ? TJSAMP_GRAY : TJSAMP_444, 95, 0);
  std::string out(reinterpret_cast<char*>(bytes), size);
  tjFree(bytes);
  tjDestroy(handle);
  return out;
}

inline std::string big_endian(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8), static_cast<char>(value)};
}

// `count` grey images of width x height whose pixels are all the image's index.
inline std::string idx_images(int count, int width, int height) {
  std::string out = big_endian(0x803) + big_endian(static_cast<std::uint32_t>(count)) + big_endian(static_cast<std::uint32_t>(height)) +
                    big_endian(static_cast<std::uint32_t>(width));
  for (int i = 0; i < count; ++i) out += std::string(static_cast<std::size_t>(width * height), static_cast<char>(i));
  return out;
}
inline std::string idx_labels(const std::string& labels) {
  return big_endian(0x801) + big_endian(static_cast<std::uint32_t>(labels.size())) + labels;
}

// A record whose red pixels are all `red`.
inline std::string cifar_record(const std::string& labels, std::uint8_t red, std::uint8_t green, std::uint8_t blue) {
  return labels + std::string(1024, static_cast<char>(red)) + std::string(1024, static_cast<char>(green)) +
         std::string(1024, static_cast<char>(blue));
}

inline std::string tar_header(const std::string& name, std::size_t size, char type) {
  std::string header(512, '\0');
  header.replace(0, std::min<std::size_t>(name.size(), 100), name.substr(0, 100));
  char number[13];
  std::snprintf(number, sizeof number, "%011zo", size);
  header.replace(124, 11, number, 11);
  header[156] = type;
  header.replace(257, 8,
                 std::string("ustar\0"
                             "00",
                             8));
  header.replace(148, 8, std::string(8, ' '));
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  std::snprintf(number, sizeof number, "%06o", sum);
  header.replace(148, 7, std::string(number, 6) + '\0');
  return header;
}

inline std::string tar_member(const std::string& name, const std::string& content, char type = '0') {
  return tar_header(name, content.size(), type) + content + std::string((512 - content.size() % 512) % 512, '\0');
}

}  // namespace tessera::data
