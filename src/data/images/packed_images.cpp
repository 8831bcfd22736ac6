// Images of one size in few files: IDX (MNIST) and CIFAR's binary records. They are held in memory.
#include <algorithm>

#include "base/file_system.hpp"
#include "base/hash.hpp"
#include "data/byte_stream.hpp"
#include "data/images/image_source.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

constexpr const char* kFetch = "fetch the file again";

// Decompressed where its name ends in .gz.
std::string whole_content(const std::filesystem::path& file) {
  SourceFile source{.path = file};
  if (file.extension() == ".gz") source.compression = Compression::gzip;
  const auto stream = open_bytes(source);
  std::string out;
  for (std::string_view piece = stream->next(); !piece.empty(); piece = stream->next()) out += piece;
  return out;
}

std::uint32_t big_endian(const std::string& bytes, std::size_t at) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<std::uint8_t>(bytes[at + i]);
  return value;
}

struct Idx {
  std::vector<std::uint32_t> extents;
  std::string content;
  std::size_t begin = 0;  // of the values
};

// A header of a magic number, whose last byte is the number of extents, and the extents; then the values, a byte each.
Idx read_idx(const std::filesystem::path& file, std::size_t extents, const std::string& what) {
  constexpr std::uint32_t kBytes = 0x08;
  Idx idx{{}, whole_content(file), 4 + 4 * extents};
  const auto magic = static_cast<std::uint32_t>(kBytes << 8 | extents);
  if (idx.content.size() < idx.begin || big_endian(idx.content, 0) != magic)
    throw Error(ErrorCode::corrupt, "this file holds no " + what, in_file(file), text("an IDX file of bytes with ", extents, " extents"),
                kFetch);
  std::uint64_t size = 1;
  for (std::size_t i = 0; i < extents; ++i) {
    idx.extents.push_back(big_endian(idx.content, 4 + 4 * i));
    size *= idx.extents.back();
    if (size > idx.content.size()) break;
  }
  const std::uint64_t there = idx.content.size() - idx.begin;
  if (size != there)
    throw Error(ErrorCode::corrupt, text("the file has ", there, " bytes of ", what, ", and its header says otherwise"), in_file(file),
                "the product of the extents in its header", kFetch);
  return idx;
}

class IdxImages final : public ImageSource {
 public:
  IdxImages(const std::filesystem::path& images, const std::filesystem::path& labels) : file_(images) {
    idx_ = read_idx(images, 3, "images");
    const Idx read = read_idx(labels, 1, "labels");
    if (idx_.extents[0] != read.extents[0])
      throw Error(ErrorCode::invalid_config,
                  text("there are ", idx_.extents[0], " images, and ", read.extents[0], " labels in ", labels.filename().string()),
                  in_file(images), "a label for each image", kFetch);
    if (idx_.extents[1] == 0 || idx_.extents[2] == 0)
      throw Error(ErrorCode::corrupt, "its images have no pixels", in_file(images), {}, kFetch);
    if (idx_.extents[0] == 0) throw Error(ErrorCode::invalid_config, "the file holds no image", in_file(images), "at least one", kFetch);
    const std::string_view values = std::string_view(read.content).substr(read.begin);
    for (const char label : values) labels_.push_back(static_cast<std::uint8_t>(label));
    content_hash_ = hash64(values, hash64(idx_.content));
  }

  Image read(std::int64_t index) const override {
    Image image = blank(static_cast<int>(idx_.extents[2]), static_cast<int>(idx_.extents[1]), 1);
    const char* first = idx_.content.data() + idx_.begin + static_cast<std::size_t>(index) * image.pixels.size();
    std::copy_n(first, image.pixels.size(), image.pixels.begin());
    return image;
  }
  std::string name(std::int64_t index) const override { return text(file_.string(), ", image ", index); }

 private:
  std::filesystem::path file_;
  Idx idx_;
};

class CifarImages final : public ImageSource {
 public:
  CifarImages(const std::vector<std::filesystem::path>& files, int label_bytes) : label_bytes_(static_cast<std::size_t>(label_bytes)) {
    const std::size_t record = label_bytes_ + kPixels;
    for (const std::filesystem::path& file : files) {
      std::string content = whole_content(file);
      if (content.empty() || content.size() % record != 0)
        throw Error(
            ErrorCode::corrupt, text("the file has ", content.size(), " bytes"), in_file(file),
            text("records of ", label_bytes, label_bytes == 1 ? " label" : " labels", " and 3 x 32 x 32 pixels, ", record, " bytes each"),
            kFetch);
      for (std::size_t at = 0; at < content.size(); at += record)
        labels_.push_back(static_cast<std::uint8_t>(content[at + label_bytes_ - 1]));
      content_hash_ = hash64(content, content_hash_);
      files_.push_back({file, size(), std::move(content)});
    }
  }

  Image read(std::int64_t index) const override {
    const auto [file, in_it] = find(index);
    const char* planes = file->content.data() + static_cast<std::size_t>(in_it) * (label_bytes_ + kPixels) + label_bytes_;
    Image image = blank(kSide, kSide, 3);
    for (std::size_t i = 0; i < kPlane; ++i)
      for (std::size_t c = 0; c < 3; ++c) image.pixels[i * 3 + c] = static_cast<std::uint8_t>(planes[c * kPlane + i]);
    return image;
  }
  std::string name(std::int64_t index) const override {
    const auto [file, in_it] = find(index);
    return text(file->path.string(), ", image ", in_it);
  }

 private:
  static constexpr int kSide = 32;
  static constexpr std::size_t kPlane = kSide * kSide, kPixels = 3 * kPlane;
  struct File {
    std::filesystem::path path;
    std::int64_t end;  // index behind its last image
    std::string content;
  };

  std::pair<const File*, std::int64_t> find(std::int64_t index) const {
    const auto file = std::upper_bound(files_.begin(), files_.end(), index, [](std::int64_t at, const File& one) { return at < one.end; });
    return {&*file, index - (file == files_.begin() ? 0 : std::prev(file)->end)};
  }

  std::size_t label_bytes_;
  std::vector<File> files_;
};

}  // namespace

std::int64_t ImageSource::class_count() const {
  if (!classes_.empty()) return std::ssize(classes_);
  return labels_.empty() ? 0 : std::int64_t{1} + *std::max_element(labels_.begin(), labels_.end());
}

std::unique_ptr<ImageSource> open_idx(const std::filesystem::path& images, const std::filesystem::path& labels) {
  return std::make_unique<IdxImages>(images, labels);
}

std::unique_ptr<ImageSource> open_cifar(const std::vector<std::filesystem::path>& files, int label_bytes) {
  return std::make_unique<CifarImages>(files, label_bytes);
}

}  // namespace tessera::data
