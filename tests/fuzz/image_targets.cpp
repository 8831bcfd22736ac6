// What reads images: JPEG and PNG, IDX, and tar archives.
#include <memory>

#include "base/temporary_folder.hpp"
#include "data/image_files.hpp"
#include "data/images/image_source.hpp"
#include "fuzz/checks.hpp"

namespace tessera::fuzz {
namespace {

void check_image(const data::Image& image) {
  const std::size_t pixels = static_cast<std::size_t>(image.width) * static_cast<std::size_t>(image.height);
  if ((image.channels != 1 && image.channels != 3) || image.pixels.size() != pixels * static_cast<std::size_t>(image.channels))
    throw Defect(text("an image of ", image.width, " x ", image.height, " x ", image.channels, " and ", image.pixels.size(), " bytes"));
}

void read_all(const data::ImageSource& source) {
  for (std::int64_t i = 0; i < source.size(); ++i) {
    if (source.label(i) < 0 || source.label(i) >= source.class_count())
      throw Defect(text("label ", source.label(i), " of ", source.class_count()));
    check_image(source.read(i));
  }
}

}  // namespace

Target image_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt};
  for (const int channels : {1, 3})
    for (const std::string& file : {data::png_of(data::patterned(9, 7, channels)), data::jpeg_of(data::patterned(9, 7, channels))})
      target.seeds.push_back(file);
  target.read = [](const std::string& input) { check_image(data::decode_image(std::as_bytes(std::span(input)), "any")); };
  return target;
}

Target idx_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt, ErrorCode::invalid_config};
  target.seeds = {data::idx_images(2, 3, 4), data::idx_images(2, 1, 1)};
  target.read = [folder = std::make_shared<TemporaryFolder>()](const std::string& input) {
    folder->write("train-labels-idx1-ubyte", data::idx_labels({1, 2}));
    folder->write("train-images-idx3-ubyte", input);
    read_all(*data::open_image_sets(folder->path(), {}).train);
  };
  return target;
}

Target shard_target() {
  Target target;
  target.refusals = {ErrorCode::corrupt, ErrorCode::invalid_config};
  const std::string image = data::png_of(data::plain(2, 2, {9}));
  target.seeds = {data::tar_member("0.png", image) + data::tar_member("0.cls", "3"),
                  data::tar_member("x", "14 path=1.png\n", 'x') + data::tar_member("0", image) +
                      data::tar_member("L", std::string("1.cls\0", 6), 'L') + data::tar_member("0", "12\n") + std::string(1024, '\0')};
  target.read = [folder = std::make_shared<TemporaryFolder>()](const std::string& input) {
    read_all(*data::open_shards({folder->write("any.tar", input)}));
  };
  return target;
}

}  // namespace tessera::fuzz
