// internal: where labelled images come from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "data/images/image.hpp"

namespace tessera::data {

// Immutable; safe to use from several threads.
class ImageSource {
 public:
  virtual ~ImageSource() = default;
  // Throws corrupt or io, naming the image.
  virtual Image read(std::int64_t index) const = 0;
  // What stands for it in errors: its file, or its place in one.
  virtual std::string name(std::int64_t index) const = 0;

  std::int64_t size() const { return std::ssize(labels_); }
  std::int32_t label(std::int64_t index) const { return labels_[static_cast<std::size_t>(index)]; }
  // The names of the classes, or, where they have none, one more than the largest label says.
  std::int64_t class_count() const;
  const std::vector<std::string>& classes() const { return classes_; }
  // For IDX and CIFAR files, identifies their content; for folders and shards only names and labels, because reading all images would take
  // long.
  std::uint64_t content_hash() const { return content_hash_; }

 protected:
  std::vector<std::int32_t> labels_;
  std::vector<std::string> classes_;
  std::uint64_t content_hash_ = 0;
};

struct ImageSets {
  std::unique_ptr<ImageSource> train;
  std::unique_ptr<ImageSource> validation;  // null: the source has none of its own
  std::vector<std::string> notes;
};

// Tells by the names in the folder what it holds:
//   train-images-idx3-ubyte, train-labels-idx1-ubyte, and t10k-*  IDX (MNIST), also with .gz
//   data_batch_*.bin and test_batch.bin, or train.bin and test.bin  CIFAR-10, or CIFAR-100 (its fine labels)
//   *.tar                                                          shards as webdataset writes them: KEY.jpg or KEY.png with KEY.cls
//   folders                                                        a folder of images for each class, in the order of their names
// Shards and class folders may stand in `train` and `val` (or `validation`). A single .tar is a source, too. Throws not_found with the
// nearest name; invalid_config where labels are missing or do not fit, or a class is empty; corrupt for damaged files. `where` is where the
// user named it.
ImageSets open_image_sets(const std::filesystem::path& root, const Where& where);

std::unique_ptr<ImageSource> open_idx(const std::filesystem::path& images, const std::filesystem::path& labels);
// Files of records: `label_bytes` of which the last is the label, and 3 * 32 * 32 bytes of pixels.
std::unique_ptr<ImageSource> open_cifar(const std::vector<std::filesystem::path>& files, int label_bytes);
// With `classes`, those of the training images: a class that is not among them is an error.
std::unique_ptr<ImageSource> open_class_folders(const std::filesystem::path& root, const std::vector<std::string>& classes,
                                                const Where& where, std::vector<std::string>& notes);
std::unique_ptr<ImageSource> open_shards(const std::vector<std::filesystem::path>& shards);

}  // namespace tessera::data
