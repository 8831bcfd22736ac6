#include <png.h>
#include <turbojpeg.h>
#include <algorithm>
#include <cctype>
#include <cstring>
#include <memory>

#include "base/error.hpp"
#include "data/images/image.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

// Above any photograph; a few bytes can claim to be more and would take all memory.
constexpr std::int64_t kMostPixels = 1 << 28;

[[noreturn]] void refuse(const std::string& what, const std::string& name) {
  throw Error(ErrorCode::corrupt, "the image cannot be read: " + what, in_file(name), "a whole JPEG or PNG file",
              "fetch it again, or take it out of the source");
}

// Beyond what either format compresses to a byte.
constexpr std::int64_t kMostPixelsOfAByte = 10'000;

void check_size(std::int64_t width, std::int64_t height, std::span<const std::byte> bytes, const std::string& name) {
  const std::int64_t most = std::min(kMostPixels, std::ssize(bytes) * kMostPixelsOfAByte);
  if (width <= 0 || height <= 0 || width * height > most)
    refuse(text("it says that it has ", width, " x ", height, " pixels, more than can be"), name);
}

// Adobe's files hold inverted inks, which is how libjpeg hands them out.
Image from_cmyk(const Image& inks) {
  Image out = blank(inks.width, inks.height, 3);
  for (std::size_t i = 0; i * 4 < inks.pixels.size(); ++i)
    for (std::size_t c = 0; c < 3; ++c)
      out.pixels[i * 3 + c] = static_cast<std::uint8_t>((inks.pixels[i * 4 + c] * inks.pixels[i * 4 + 3] + 127) / 255);
  return out;
}

Image decode_jpeg(std::span<const std::byte> bytes, const std::string& name) {
  const std::unique_ptr<void, int (*)(tjhandle)> handle(tjInitDecompress(), tjDestroy);
  ensure(handle != nullptr, "libjpeg-turbo does not start");
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const auto size = static_cast<unsigned long>(bytes.size());
  int width = 0, height = 0, sampling = 0, colours = 0;
  if (tjDecompressHeader3(handle.get(), data, size, &width, &height, &sampling, &colours) != 0) refuse(tjGetErrorStr2(handle.get()), name);
  check_size(width, height, bytes, name);
  const bool inks = colours == TJCS_CMYK || colours == TJCS_YCCK;
  const int format = inks ? TJPF_CMYK : colours == TJCS_GRAY ? TJPF_GRAY : TJPF_RGB;
  Image image = blank(width, height, tjPixelSize[format]);
  if (tjDecompress2(handle.get(), data, size, image.pixels.data(), width, 0, height, format, 0) != 0) {
    // Odd bytes between markers are common, and change no pixel; what is missing is grey.
    const std::string problem = tjGetErrorStr2(handle.get());
    if (tjGetErrorCode(handle.get()) != TJERR_WARNING || problem.find("remature end") != std::string::npos) refuse(problem, name);
  }
  return inks ? from_cmyk(image) : image;
}

Image decode_png(std::span<const std::byte> bytes, const std::string& name) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const auto check = [&](int done) {
    if (done == 0) refuse(png.message, name);
  };
  check(png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()));
  // What was begun is freed by what ends it, or here.
  const std::unique_ptr<png_image, void (*)(png_image*)> held(&png, png_image_free);
  check_size(png.width, png.height, bytes, name);
  const bool colour = (png.format & PNG_FORMAT_FLAG_COLOR) != 0;
  // Read with its transparency, so that nothing is blended.
  png.format = colour ? PNG_FORMAT_RGBA : PNG_FORMAT_GA;
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  const int channels = colour ? 3 : 1;
  std::vector<std::uint8_t> pixels(PNG_IMAGE_SIZE(png));
  check(png_image_finish_read(&png, nullptr, pixels.data(), 0, nullptr));
  Image image = blank(static_cast<int>(png.width), static_cast<int>(png.height), channels);
  for (std::size_t i = 0; i * static_cast<std::size_t>(channels) < image.pixels.size(); ++i)
    std::copy_n(pixels.data() + i * static_cast<std::size_t>(channels + 1), channels,
                image.pixels.data() + i * static_cast<std::size_t>(channels));
  return image;
}

bool starts_with(std::span<const std::byte> bytes, std::string_view begin) {
  return bytes.size() >= begin.size() && std::memcmp(bytes.data(), begin.data(), begin.size()) == 0;
}

}  // namespace

Image decode_image(std::span<const std::byte> bytes, const std::string& name) {
  if (starts_with(bytes, "\xFF\xD8\xFF")) return decode_jpeg(bytes, name);
  if (starts_with(bytes, "\x89PNG\r\n\x1A\n")) return decode_png(bytes, name);
  refuse(bytes.empty() ? "it is empty" : "its first bytes are neither those of a JPEG nor of a PNG", name);
}

bool is_image_name(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower.ends_with(".jpg") || lower.ends_with(".jpeg") || lower.ends_with(".png");
}

Image with_channels(Image image, int channels) {
  if (image.channels == channels) return image;
  Image out = blank(image.width, image.height, channels);
  const std::size_t pixels = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height);
  const std::uint8_t* in = image.pixels.data();
  if (image.channels == 1) {
    for (std::size_t i = 0; i < pixels; ++i) std::fill_n(out.pixels.begin() + static_cast<std::ptrdiff_t>(i) * channels, channels, in[i]);
    return out;
  }
  ensure(image.channels == 3 && channels == 1, "images have 1 or 3 channels");
  for (std::size_t i = 0; i < pixels; ++i)
    out.pixels[i] = static_cast<std::uint8_t>((in[3 * i] * 19595 + in[3 * i + 1] * 38470 + in[3 * i + 2] * 7471 + 0x8000) >> 16);
  return out;
}

}  // namespace tessera::data
