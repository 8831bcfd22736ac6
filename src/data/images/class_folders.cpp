// A folder of images for each class, as ImageNet lies on disks.
#include <algorithm>

#include "base/file_system.hpp"
#include "base/hash.hpp"
#include "data/images/image_source.hpp"
#include "data/in_file.hpp"

namespace tessera::data {
namespace {

namespace fs = std::filesystem;

bool hidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

std::vector<std::string> folders_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(root))
    if (entry.is_directory() && !hidden(entry.path())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// What people have who fetched another form of it.
std::string hint_on(const fs::path& root) {
  if (fs::exists(root / "data_batch_1") || (fs::exists(root / "meta") && fs::exists(root / "train")))
    return "these are CIFAR's files for Python; the archive of its binary version has others";
  for (const auto& entry : fs::directory_iterator(root))
    if (const std::string name = entry.path().filename().string();
        name.ends_with(".tar.gz") || name.ends_with(".tgz") || name.ends_with(".zip"))
      return text("unpack ", name, ": shards are read where they are, and may not be compressed");
  return {};
}

class ClassFolders final : public ImageSource {
 public:
  ClassFolders(const fs::path& root, const std::vector<std::string>& classes, const Where& where, std::vector<std::string>& notes)
      : root_(root) {
    const std::vector<std::string> found = folders_in(root);
    if (found.empty())
      throw Error(ErrorCode::invalid_config, text(root.string(), " holds neither folders nor sets of images"), where,
                  "a folder of .jpg or .png for each class, train-images-idx3-ubyte and its labels (MNIST), data_batch_1.bin or train.bin "
                  "(CIFAR's binary version), or .tar shards",
                  hint_on(root));
    classes_ = classes.empty() ? found : classes;
    std::int64_t left_out = 0;
    for (const std::string& name : found) {
      const auto known = std::find(classes_.begin(), classes_.end(), name);
      if (known == classes_.end())
        throw Error(ErrorCode::invalid_config, "there is no class of this name among the training images", in_file(root / name),
                    text("one of their ", classes_.size(), " classes"));
      left_out += add(name, static_cast<std::int32_t>(known - classes_.begin()));
    }
    if (left_out > 0)
      notes.push_back(text(left_out, " files of ", root.string(), " are left out: their names end neither in .jpg, .jpeg nor in .png"));
    content_hash_ = hash64(text(classes_.size()), content_hash_);
  }

  Image read(std::int64_t index) const override {
    const std::string bytes = read_whole(name(index));
    return decode_image(std::as_bytes(std::span(bytes)), name(index));
  }
  std::string name(std::int64_t index) const override { return (root_ / files_[static_cast<std::size_t>(index)]).string(); }

 private:
  // Returns how many files are no images.
  std::int64_t add(const std::string& folder, std::int32_t label) {
    std::vector<std::string> files;
    std::int64_t left_out = 0;
    for (auto entry = fs::recursive_directory_iterator(root_ / folder, fs::directory_options::follow_directory_symlink);
         entry != fs::recursive_directory_iterator(); ++entry) {
      if (hidden(entry->path())) {
        entry.disable_recursion_pending();
      } else if (is_image_name(entry->path().filename().string())) {
        files.push_back(fs::path(folder) / entry->path().lexically_relative(root_ / folder));
      } else if (!entry->is_directory()) {
        ++left_out;
      }
    }
    if (files.empty())
      throw Error(ErrorCode::invalid_config, "the folder of this class holds no images", in_file(root_ / folder),
                  "files in .jpg, .jpeg or .png", "put some there, or remove the folder");
    std::sort(files.begin(), files.end());
    for (const std::string& file : files) {
      content_hash_ = hash64(file, content_hash_);
      labels_.push_back(label);
    }
    files_.insert(files_.end(), files.begin(), files.end());
    return left_out;
  }

  fs::path root_;
  std::vector<std::string> files_;  // relative to it
};

}  // namespace

std::unique_ptr<ImageSource> open_class_folders(const fs::path& root, const std::vector<std::string>& classes, const Where& where,
                                                std::vector<std::string>& notes) {
  return std::make_unique<ClassFolders>(root, classes, where, notes);
}

}  // namespace tessera::data
